// What the accesses of a counted kernel ask of memory: which sectors of global memory and which banks of shared memory
// the lanes of a warp touch at once.
//
// One request is one access of the text by the lanes of a warp, the n-th since they last waited being the n-th of each.
// A request of global memory takes the sectors of 32 bytes that its bytes lie in, and at least as many as they would
// fill (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"). Shared memory has 32 banks, of which each
// gives one word of 4 bytes at a time, to all lanes that want it: a request takes as many turns as a bank has different
// words to give; of accesses of 8 bytes each half of a warp is served for itself, of 16 bytes each quarter (CUDA C++
// Programming Guide, "Shared Memory" of the compute capabilities).
#pragma once
#include "core.h"

namespace cuda_on_cpu {

// All requests of an access of the text, blocks that were not looked at included.
struct Count {
  const char* kernel;
  int line;       // of the translated text
  bool shared, write;
  unsigned bytes;  // of a lane
  double requests, moved;  // ``moved``: different bytes
  double units, least;     // sectors, or turns of the banks; and without waste
};

void counts_block(const Kernel* kernel, unsigned long block, unsigned long blocks);
// All lanes of a warp have run until they wait or have ended.
void counts_warp();
void counts_access(const void* at, unsigned bytes, bool write, const void* site, unsigned lane, bool shared);

}  // namespace cuda_on_cpu

extern "C" {
// How many rows there are since the last call; up to ``room`` of them are written, and then none is kept.
unsigned long cuda_on_cpu_counts(cuda_on_cpu::Count* rows, unsigned long room);
}
