#include "counts.h"

#include <stdlib.h>
#include <string.h>

namespace cuda_on_cpu {
namespace {

typedef unsigned long Word;
const unsigned WARP = 32, SECTOR = 32, BANKS = 32, TABLE = 1u << 16, NOBODY = ~0u;
const unsigned BLOCKS = 8;      // of a launch that are looked at, spread over it
const unsigned TURNS = 1 << 14;  // of an access of a lane without waiting; what comes after is like it

struct Request {
  Word at[WARP];
  unsigned lanes;
};

struct Access {
  Count count;
  const void* site;
  unsigned lane, turn;  // that came last, and how often since it waited
  Request* pending;
  unsigned used, room;
};

Access table[TABLE];
Access* touched[TABLE];  // since a warp waited
unsigned accesses, waiting;
const Kernel* kernel;
double weight;  // of a block; 0: it is not looked at

bool is(const Access& a, const void* site, unsigned bytes, bool write, bool shared) {
  return a.site == site && a.count.kernel == kernel->name && a.count.bytes == bytes && a.count.write == write &&
         a.count.shared == shared;
}

Access& access_of(const void* site, unsigned bytes, bool write, bool shared) {
  unsigned at = ((Word)site * 0x9e3779b97f4a7c15ul) >> 48;
  while (table[at].site && !is(table[at], site, bytes, write, shared)) at = (at + 1) % TABLE;
  Access& a = table[at];
  if (a.site) return a;
  if (++accesses == TABLE) __builtin_trap();
  a.site = site;
  a.lane = NOBODY;
  a.count = {kernel->name, 0, shared, write, bytes, 0, 0, 0, 0};
  for (const Site* s = kernel->sites; s->at; s++)
    if (s->at == site) a.count.line = s->line;
  return a;
}

// The addresses of lanes ``first`` up to ``end``, in order.
unsigned sorted(const Request& r, unsigned first, unsigned end, Word* out) {
  unsigned n = 0;
  for (unsigned i = first; i < end; i++) {
    if (!(r.lanes >> i & 1)) continue;
    unsigned to = n++;
    for (; to && out[to - 1] > r.at[i]; to--) out[to] = out[to - 1];
    out[to] = r.at[i];
  }
  return n;
}

// Different words of the bank that has most of them.
unsigned turns(const Word* at, unsigned n, unsigned bytes) {
  unsigned words[BANKS] = {}, most = 0;
  Word last = 0;
  for (unsigned i = 0; i < n; i++)
    for (Word word = at[i] / 4; word <= (at[i] + bytes - 1) / 4; word++) {
      if (word <= last) continue;
      last = word;
      unsigned& found = words[word % BANKS];
      if (++found > most) most = found;
    }
  return most;
}

void add(Count& c, const Request& r) {
  Word at[WARP];
  unsigned n = sorted(r, 0, WARP, at), sectors = 0, bytes = 0;
  Word end = 0, sector_end = 0;
  for (unsigned i = 0; i < n; i++) {
    Word from = at[i] > end ? at[i] : end;
    end = at[i] + c.bytes;
    bytes += end > from ? end - from : 0;
    for (Word s = at[i] / SECTOR; s <= (end - 1) / SECTOR; s++)
      if (s >= sector_end) sectors++, sector_end = s + 1;
  }
  unsigned units = sectors, least = (bytes + SECTOR - 1) / SECTOR;
  if (c.shared) {
    unsigned part = c.bytes > 8 ? WARP / 4 : c.bytes > 4 ? WARP / 2 : WARP;
    units = least = 0;
    for (unsigned first = 0; first < WARP; first += part) {
      n = sorted(r, first, first + part, at);
      units += turns(at, n, c.bytes);
      least += n > 0;
    }
  }
  c.requests += weight;
  c.moved += weight * bytes;
  c.units += weight * units;
  c.least += weight * least;
}

}  // namespace

void counts_block(const Kernel* of, unsigned long block, unsigned long blocks) {
  unsigned long step = (blocks + BLOCKS - 1) / BLOCKS, looked_at = (blocks - step / 2 + step - 1) / step;
  kernel = of;
  weight = of->sites && block % step == step / 2 ? (double)blocks / looked_at : 0;
}

void counts_warp() {
  for (unsigned i = 0; i < waiting; i++) {
    Access& a = *touched[i];
    for (unsigned j = 0; j < a.used; j++) add(a.count, a.pending[j]);
    a.used = 0;
    a.lane = NOBODY;
  }
  waiting = 0;
}

void counts_access(const void* at, unsigned bytes, bool write, const void* site, unsigned lane, bool shared) {
  if (weight == 0) return;
  Access& a = access_of(site, bytes, write, shared);
  if (a.lane != lane) a.lane = lane, a.turn = 0;
  if (a.turn == TURNS) return;
  if (!a.used) touched[waiting++] = &a;
  if (a.turn == a.room) {
    a.room = a.room ? 2 * a.room : 16;
    a.pending = (Request*)realloc((void*)a.pending, a.room * sizeof(Request));
  }
  Request& r = a.pending[a.turn++];
  if (a.turn > a.used) a.used = a.turn, r.lanes = 0;
  r.at[lane] = (Word)at;
  r.lanes |= 1u << lane;
}

}  // namespace cuda_on_cpu

using namespace cuda_on_cpu;

extern "C" __attribute__((visibility("default"))) unsigned long cuda_on_cpu_counts(Count* rows, unsigned long room) {
  unsigned long n = 0;
  for (Access& a : table)
    if (a.site) {
      if (n < room) rows[n] = a.count;
      n++;
    }
  if (n > room) return n;
  for (Access& a : table) free(a.pending);
  memset((void*)table, 0, sizeof table);
  accesses = waiting = 0;
  return n;
}
