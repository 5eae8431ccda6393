#include "races.h"

#include <string.h>
#include <sys/mman.h>

namespace cuda_on_cpu {
namespace {

typedef unsigned long Word;
const unsigned MOST = 1024, WARP = 32, SHIFT = 12, PAGE = 1u << SHIFT;
const unsigned TABLE = 1u << 17, KEPT = 2048;  // pages that are kept for the next launch

// Who was at a byte, and when: ``stamp`` counts the stretches between barriers of all blocks of all launches, ``clock``
// the thread's own meetings since.
struct Mark {
  unsigned stamp;
  unsigned short thread, clock;
};

struct Place {
  Mark write, reads[2];  // reads[0] is the newest, reads[1] one of another thread, as far from it as there was
};

// What happened to whole words of four bytes stands in ``words``, all else in ``bytes``, if there was any (``parts``).
struct Page {
  Word number;
  Place *words, *bytes;
  bool parts;
};

const Word ROOM = (PAGE + PAGE / 4) * sizeof(Place);
Page table[TABLE];  // by a hash of the number
Page* recent[16];
unsigned used;
unsigned now = 1, block_began, launch_began;
unsigned short seen[MOST][WARP];  // seen[t][l]: up to which clock of lane l thread t knows what it did
bool met;

unsigned short& clock_of(unsigned thread) { return seen[thread][thread % WARP]; }

void forget_meetings() {
  if (met) memset(seen, 0, sizeof seen);
  met = false;
}

void* reserve(Word bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

Page& page_of(Word number) {
  Page*& last = recent[number % 16];
  if (last && last->number == number) return *last;
  unsigned at = (number * 0x9e3779b97f4a7c15ul) >> 47;
  while (table[at].words && table[at].number != number) at = (at + 1) % TABLE;
  last = &table[at];
  if (!last->words) {
    if (++used == TABLE) __builtin_trap();
    last->number = number;
    last->words = (Place*)reserve(ROOM);
    last->bytes = last->words + PAGE / 4;
  }
  return *last;
}

// 0: has no say any more. 1: ordered with all that this block does from now on. From 2 on: not ordered with thread
// ``of``, of its warp, of another warp, of another block.
unsigned distance(const Mark& mark, unsigned of, bool shared) {
  if (mark.stamp < launch_began) return 0;
  if (mark.stamp < block_began) return shared ? 0 : 4;
  if (mark.stamp != now || mark.thread == of) return 1;
  if (mark.thread / WARP != of / WARP) return 3;
  return seen[of][mark.thread % WARP] > mark.clock ? 1 : 2;
}

const char* conflict(const Place& place, unsigned me, bool write, bool shared) {
  if (distance(place.write, me, shared) > 1) return write ? "writes what another wrote" : "reads what another wrote";
  if (!write) return nullptr;
  for (const Mark& read : place.reads)
    if (distance(read, me, shared) > 1) return "writes what another read";
  return nullptr;
}

void note(Place& place, const Mark& mine, bool write, bool shared) {
  if (write) {
    place.write = mine;
    place.reads[0] = place.reads[1] = {0, 0, 0};  // what is ordered with this write is ordered with them
    return;
  }
  Mark before = place.reads[0];
  place.reads[0] = mine;
  unsigned far = distance(before, mine.thread, shared);
  if (far > 1 && far >= distance(place.reads[1], mine.thread, shared)) place.reads[1] = before;
}

// One whole word, or one byte.
const char* check(Word at, bool whole, const Mark& mine, bool write, bool shared) {
  Page& page = page_of(at >> SHIFT);
  unsigned offset = at & (PAGE - 1);
  page.parts |= !whole;
  const char* why = conflict(page.words[offset / 4], mine.thread, write, shared);
  for (unsigned i = 0; page.parts && !why && i < (whole ? 4 : 1); i++)
    why = conflict(page.bytes[offset + i], mine.thread, write, shared);
  if (!why) note(whole ? page.words[offset / 4] : page.bytes[offset], mine, write, shared);
  return why;
}

}  // namespace

void races_launch() {
  launch_began = ++now;
  if (used < KEPT) return;
  for (Page& page : table)
    if (page.words) munmap(page.words, ROOM);
  memset(table, 0, sizeof table);
  memset(recent, 0, sizeof recent);
  used = 0;
}

void races_block() {
  block_began = ++now;
  forget_meetings();
}

void races_barrier() {
  now++;
  forget_meetings();
}

void races_meet(unsigned first, unsigned group) {
  unsigned short all[WARP] = {};
  for (unsigned i = 0; i < WARP; i++) {
    if (!(group >> i & 1)) continue;
    clock_of(first + i)++;  // what it did so far has a lower clock
    for (unsigned l = 0; l < WARP; l++)
      if (seen[first + i][l] > all[l]) all[l] = seen[first + i][l];
  }
  for (unsigned i = 0; i < WARP; i++)
    if (group >> i & 1) memcpy(seen[first + i], all, sizeof all);
  met = true;
}

const char* races_access(const void* at, unsigned bytes, bool write, unsigned thread, bool shared) {
  Mark mine = {now, (unsigned short)thread, clock_of(thread)};
  bool whole = (Word)at % 4 == 0 && bytes % 4 == 0;
  for (Word place = (Word)at, end = place + bytes; place < end; place += whole ? 4 : 1)
    if (const char* why = check(place, whole, mine, write, shared)) return why;
  return nullptr;
}

}  // namespace cuda_on_cpu
