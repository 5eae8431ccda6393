// In which order things are taken of which a GPU takes none first.
#pragma once
#include "core.h"

namespace cuda_on_cpu {

inline unsigned common(unsigned a, unsigned b) { return b ? common(b, a % b) : a; }

// ``n`` things. A hashed order is another at every turn.
struct Permutation {
  int order;
  unsigned n, step, first;
  Permutation(int order, unsigned n, unsigned turn) : order(order), n(n), step(1), first(0) {
    if (order != HASHED || n < 3) return;
    step = n * 5 / 8 + 1;
    while (common(step, n) != 1) step++;
    first = turn * 7 % n;
  }
  unsigned operator[](unsigned i) const {
    return order == REVERSE ? n - 1 - i : (unsigned)(((unsigned long)i * step + first) % n);
  }
};

}  // namespace cuda_on_cpu
