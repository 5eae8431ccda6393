// Device memory: every allocation ends at a page that may not be touched, and no address is ever given twice.
#include <stdint.h>
#include <sys/mman.h>

#include "list.h"

namespace fake {
namespace {

const size_t PAGE = 4096, GAP = 64 << 10, RANGE = (size_t)1 << 38;
const int POISON = 0xff;

struct Block {
  unsigned char* begin;  // where it really lies
  size_t bytes;
  bool operator==(const Block& b) const { return begin == b.begin; }
  size_t room() const {
    size_t unit = settings().alignment;
    return (bytes + unit - 1) / unit * unit;
  }
  unsigned char* page() const { return (unsigned char*)((uintptr_t)begin / PAGE * PAGE); }
  unsigned char* end() const { return begin + room(); }
};

struct Host {
  unsigned char* begin;
  size_t bytes;
  bool operator==(const Host& h) const { return begin == h.begin; }
};

List<Block> blocks;
List<Host> hosts;
unsigned char *memory, *shown, *next;  // RANGE bytes each; what is at memory + x is shown as shown + x

bool prepare() {
  if (memory) return true;
  void* both = mmap(nullptr, 2 * RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (both == MAP_FAILED) return false;
  memory = next = (unsigned char*)both;
  shown = memory + RANGE;
  return true;
}

bool poisoned(const unsigned char* from, const unsigned char* to) {
  for (; from < to; from++)
    if (*from != POISON) return false;
  return true;
}

bool intact(const Block& b) { return poisoned(b.page(), b.begin) && poisoned(b.begin + b.bytes, b.end()); }

}  // namespace

Error allocate(void** out, size_t bytes) {
  *out = nullptr;
  if (Error e = unsafe_in_capture()) return e;
  counters().mallocs++;
  if (!bytes) return SUCCESS;
  if (bytes > bytes_free() || !prepare()) return OUT_OF_MEMORY;
  Block b = {nullptr, bytes};
  size_t pages = (b.room() + PAGE - 1) / PAGE * PAGE;
  if ((size_t)(memory + RANGE - next) < pages + 2 * GAP) return OUT_OF_MEMORY;
  unsigned char* first = next + GAP;
  next = first + pages;
  b.begin = first + pages - b.room();
  if (pages && mprotect(first, pages, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
  memset(first, POISON, pages);
  blocks.add(b);
  counters().bytes += bytes;
  if (counters().bytes > counters().most) counters().most = counters().bytes;
  *out = b.begin + (shown - memory);
  return SUCCESS;
}

Error release(void* address) {
  if (!address) return SUCCESS;
  if (Error e = unsafe_in_capture()) return e;
  if (Error e = everything()) return e;  // it waits for the device
  for (size_t i = 0; i < blocks.size; i++) {
    Block b = blocks.items[i];
    if (b.begin + (shown - memory) != address) continue;
    if (!intact(b)) return lose(ILLEGAL_ADDRESS, "something was stored beside an allocation");
    counters().frees++;
    counters().bytes -= b.bytes;
    madvise(b.page(), b.end() - b.page(), MADV_DONTNEED);
    mprotect(b.page(), b.end() - b.page(), PROT_NONE);
    blocks.remove(b);
    return SUCCESS;
  }
  return INVALID_VALUE;
}

Error allocate_host(void** out, size_t bytes) {
  if (Error e = unsafe_in_capture()) return e;
  Host h = {nullptr, bytes};
  if (posix_memalign((void**)&h.begin, 4096, bytes ? bytes : 1)) return OUT_OF_MEMORY;
  memset(h.begin, POISON, bytes);
  hosts.add(h);
  *out = h.begin;
  return SUCCESS;
}

Error release_host(void* address) {
  if (!address) return SUCCESS;
  if (Error e = unsafe_in_capture()) return e;
  if (Error e = everything()) return e;
  Host h = {(unsigned char*)address, 0};
  size_t before = hosts.size;
  hosts.remove(h);
  if (hosts.size == before) return INVALID_VALUE;
  free(address);
  return SUCCESS;
}

bool on_device(const void* address) {
  return memory && (const unsigned char*)address >= shown && (const unsigned char*)address < shown + RANGE;
}

bool pinned(const void* address) {
  for (size_t i = 0; i < hosts.size; i++) {
    const Host& h = hosts.items[i];
    if ((const unsigned char*)address >= h.begin && (const unsigned char*)address < h.begin + h.bytes) return true;
  }
  return false;
}

unsigned char* real(const void* address, size_t bytes) {
  if (!on_device(address)) return nullptr;
  unsigned char* at = (unsigned char*)address - (shown - memory);
  for (size_t i = 0; i < blocks.size; i++) {
    const Block& b = blocks.items[i];
    if (at >= b.begin && at + bytes <= b.begin + b.bytes) return at;
  }
  return nullptr;
}

bool anything_overwritten() {
  for (size_t i = 0; i < blocks.size; i++)
    if (!intact(blocks.items[i])) return true;
  return false;
}

size_t bytes_free() {
  size_t most = settings().free, used = counters().bytes;
  return used < most ? most - used : 0;
}

}  // namespace fake
