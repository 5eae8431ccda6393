// Runs the blocks of a launch, one after the other, with fibers as threads.
#include "core.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#include "counts.h"
#include "fibers.h"
#include "guard.h"
#include "order.h"
#include "races.h"

namespace cuda_on_cpu {
namespace {

const unsigned MOST = 1024, WARP = 32, STACK = 128 << 10, PAGE = 4096, COPIES = 256;
const unsigned STATIC_SHARED = 48 << 10, DYNAMIC_SHARED = 227 << 10;
const int POISON = 0xff;  // four of these are a NaN of f32, two of bf16 and f16, and an index of -1

enum Status { READY, AT_BARRIER, TOGETHER, ACTIVE, DONE };

struct Copy {
  unsigned char* shared;
  const unsigned char* global;
  unsigned bytes, filled;
};

struct Fiber {
  void* sp;
  Status status;
  Dim thread;
  int line;  // of the barrier it waits at
  Operation operation;
  void* mine;
  unsigned mask;    // TOGETHER: whom it waits for. ACTIVE: the answer
  unsigned copies;  // asynchronous ones under way,
  unsigned groups;  // of which this many groups are committed,
  unsigned ends[COPIES];  // each ending before copy ends[i]
};

State state;
Fiber fibers[MOST];
Copy under_way[MOST][COPIES];
unsigned char* stacks;
unsigned char* dynamic_page;
void* home;      // where a launch was asked for
void* launcher;  // the fiber that switches between those of the threads
Fiber* current;

const Kernel* kernel;
void** parameters;
Launch launch;
bool failed;
char* message;
unsigned long room;

void to_launcher() { cuda_on_cpu_switch(&current->sp, launcher); }

// Ends the launch, from whatever fiber.
[[noreturn]] void leave() {
  void* nobody;
  cuda_on_cpu_switch(&nobody, home);
  __builtin_unreachable();
}

[[noreturn]] void fail_with(const char* format, ...) {
  failed = true;
  char why[256];
  va_list list;
  va_start(list, format);
  vsnprintf(why, sizeof why, format, list);
  va_end(list);
  snprintf(message, room, "%s: %s (block %u,%u,%u thread %u,%u,%u)", kernel->name, why, state.block.x, state.block.y,
           state.block.z, state.thread.x, state.thread.y, state.thread.z);
  leave();
}

void fail(const char* why) { fail_with("%s", why); }

bool within(const void* at, const unsigned char* begin, unsigned long bytes) {
  return (const unsigned char*)at >= begin && (const unsigned char*)at < begin + bytes;
}

bool its_own(const void* at) { return within(at, stacks, (unsigned long)(MOST + 1) * STACK); }

bool is_shared(const void* at) {
  return within(at, state.shared, state.shared_end - state.shared) || within(at, state.dynamic, launch.dynamic);
}

void access(const void* at, unsigned bytes, bool write) {
  if (launch.order != FORWARD || its_own(at)) return;
  bool shared = is_shared(at);
  if (const char* why = races_access(at, bytes, write, state.index, shared))
    fail_with("a race in %s memory: a thread %s, and nothing orders them", shared ? "shared" : "global", why);
}

// What a kernel looks up of its launch, and where: no memory of the device.
bool is_state(const void* at, unsigned bytes) {
  return within(at, (unsigned char*)&state, sizeof state) || (bytes == sizeof at && *(State* const*)at == &state);
}

void count_access(const void* at, unsigned bytes, bool write, const void* site) {
  if (launch.order != FORWARD || its_own(at) || is_state(at, bytes)) return;
  for (unsigned done = 0; done < bytes; done += 16)  // the most that an instruction takes
    counts_access((char*)at + done, bytes - done < 16 ? bytes - done : 16, write, site, state.lane, is_shared(at));
}

void barrier(int line) {
  current->line = line;
  current->status = AT_BARRIER;
  to_launcher();
}

void together(Operation operation, void* mine, unsigned mask) {
  if (!(mask >> state.lane & 1)) fail("a lane outside its own mask");
  current->operation = operation;
  current->mine = mine;
  current->mask = mask;
  current->status = TOGETHER;
  to_launcher();
}

unsigned active(int line) {
  current->line = line;
  current->status = ACTIVE;
  to_launcher();
  return current->mask;
}

void copy(void* shared, const void* global, unsigned bytes, unsigned filled) {
  if (current->copies == COPIES) fail("more asynchronous copies than the harness keeps");
  if (filled && (unsigned long)global % bytes) fail("an asynchronous copy that is not aligned");
  Copy& c = under_way[current - fibers][current->copies++];
  c.shared = (unsigned char*)shared;
  c.global = (const unsigned char*)global;
  c.bytes = bytes;
  c.filled = filled;
  access(global, filled, false);
  access(shared, bytes, true);
  memset(shared, POISON, bytes);
}

void commit() {
  if (current->groups == COPIES) fail("more groups of asynchronous copies than the harness keeps");
  current->ends[current->groups++] = current->copies;
}

// Lets the oldest groups land, until ``left`` are under way.
void wait(unsigned left) {
  Fiber& f = *current;
  if (f.groups <= left) return;
  unsigned landed = f.groups - left, end = f.ends[landed - 1];
  Copy* mine = under_way[&f - fibers];
  for (unsigned i = 0; i < end; i++) {
    memcpy(mine[i].shared, mine[i].global, mine[i].filled);
    memset(mine[i].shared + mine[i].filled, 0, mine[i].bytes - mine[i].filled);
    access(mine[i].shared, mine[i].bytes, true);
  }
  memmove(mine, mine + end, (f.copies - end) * sizeof *mine);
  for (unsigned i = 0; i < left; i++) f.ends[i] = f.ends[i + landed] - end;
  f.copies -= end;
  f.groups = left;
}

unsigned count(const Dim& d) { return d.x * d.y * d.z; }

Dim place(unsigned index, const Dim& extents) {
  Dim at = {index % extents.x, index / extents.x % extents.y, index / extents.x / extents.y};
  return at;
}

void enter(unsigned index) {
  current = &fibers[index];
  state.index = index;
  state.lane = index % WARP;
  state.thread = current->thread;
}

void thread_entry() {
  kernel->call(parameters);
  current->status = DONE;
  to_launcher();
}

unsigned char* stack_top(unsigned index) {
  // Not all at the same place of a page, or they would share few lines of the processor's cache.
  return stacks + (unsigned long)(index + 1) * STACK - 64 - index * 576 % 3456;
}

void start(unsigned index, const Dim& thread, void (*entry)()) {
  Fiber& f = fibers[index];
  f.status = READY;
  f.thread = thread;
  f.copies = f.groups = 0;
  f.sp = fiber_start(stack_top(index), entry);
}

// Performs what all lanes of some mask have come for; true if a lane can go on.
bool release_together(Fiber* lanes, unsigned n) {
  bool released = false;
  for (unsigned i = 0; i < n; i++) {
    if (lanes[i].status != TOGETHER) continue;
    void* mine[WARP];
    unsigned group = 0;
    bool all = true;
    for (unsigned j = 0; j < n; j++) {
      Fiber& f = lanes[j];
      if (!(lanes[i].mask >> j & 1) || f.status == DONE) continue;
      all &= f.status == TOGETHER && f.mask == lanes[i].mask && f.operation == lanes[i].operation;
      mine[j] = f.mine;
      group |= 1u << j;
    }
    if (!all) continue;
    Operation operation = lanes[i].operation;
    if (operation)
      operation(mine, group);
    else
      races_meet(lanes - fibers, group);
    for (unsigned j = 0; j < n; j++)
      if (group >> j & 1) lanes[j].status = READY;
    released = true;
  }
  return released;
}

bool release_active(Fiber* lanes, unsigned n) {
  for (unsigned i = 0; i < n; i++) {
    if (lanes[i].status != ACTIVE) continue;
    unsigned group = 0;
    for (unsigned j = 0; j < n; j++)
      if (lanes[j].status == ACTIVE && lanes[j].line == lanes[i].line) group |= 1u << j;
    for (unsigned j = 0; j < n; j++)
      if (group >> j & 1) lanes[j].mask = group, lanes[j].status = READY;
    return true;
  }
  return false;
}

// Runs a warp until each of its lanes waits at a barrier or has ended.
void run_warp(unsigned first, unsigned n, unsigned turn) {
  for (bool more = true; more; turn++) {
    Permutation lanes(launch.order, n, turn);
    for (unsigned q = 0; q < n; q++) {
      unsigned i = first + lanes[q];
      if (fibers[i].status != READY) continue;
      enter(i);
      cuda_on_cpu_switch(&launcher, current->sp);
    }
    counts_warp();
    more = release_together(fibers + first, n) || release_active(fibers + first, n);
  }
}

// After every warp has run: are all at one barrier (then they go on), or ended? False if the block is finished.
bool next_interval(unsigned n) {
  unsigned done = 0, waiting = 0, odd = 0;
  for (unsigned i = 0; i < n; i++) {
    done += fibers[i].status == DONE;
    waiting += fibers[i].status == AT_BARRIER && fibers[i].line == fibers[0].line;
    if (fibers[i].status != fibers[0].status) odd = i;
  }
  if (done == n) return false;
  if (waiting != n) {
    enter(odd);
    bool warp = false;
    for (unsigned i = 0; i < n; i++) warp |= fibers[i].status == TOGETHER;
    if (warp) fail("divergent operation of a warp: some lanes of a mask did not come");
    fail_with("divergent barrier: %u of %u threads did not reach it", n - waiting, n);
  }
  for (unsigned i = 0; i < n; i++) fibers[i].status = READY;
  races_barrier();
  return true;
}

void run_waiting_block() {
  unsigned n = count(launch.threads), turn = 0;
  for (unsigned i = 0; i < n; i++) start(i, place(i, launch.threads), thread_entry);
  do {
    unsigned warps = (n + WARP - 1) / WARP;
    Permutation order(launch.order, warps, turn++);
    for (unsigned q = 0; q < warps; q++) {
      unsigned first = order[q] * WARP;
      run_warp(first, n - first < WARP ? n - first : WARP, turn);
    }
  } while (next_interval(n));
}

// Threads that wait for nobody, one after the other on one stack.
void run_plain_block() {
  unsigned n = count(launch.threads);
  Permutation order(launch.order, n, 0);
  for (unsigned q = 0; q < n; q++) {
    state.index = order[q];
    state.lane = state.index % WARP;
    state.thread = place(state.index, launch.threads);
    kernel->call(parameters);
    if (q % WARP == WARP - 1 || q == n - 1) counts_warp();
  }
}

void run_blocks() {
  unsigned n = count(launch.blocks);
  Permutation order(launch.order, n, 1);
  for (unsigned q = 0; q < n; q++) {
    state.block = place(order[q], launch.blocks);
    races_block();
    counts_block(kernel, q, n);
    if (kernel->shared) memset(kernel->shared, POISON, kernel->shared_end - kernel->shared);
    if (launch.dynamic) memset(state.dynamic, POISON, launch.dynamic);
    if (kernel->waits)
      run_waiting_block();
    else
      run_plain_block();
  }
}

void launcher_entry() {
  run_blocks();
  leave();
}

void on_signal(int number, siginfo_t* info, void*) {
  if (number == SIGILL || number == SIGTRAP) fail("an index outside of an array of the kernel's own");
  if (number == SIGFPE) fail("an integer divided by zero");
  fail_with("a load or store outside of every tensor, or not aligned, at %p", info->si_addr);
}

void* reserve(unsigned long bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

void prepare() {
  if (stacks) return;
  stacks = (unsigned char*)reserve((unsigned long)(MOST + 1) * STACK);
  for (unsigned i = 0; i <= MOST; i++) mprotect(stacks + (unsigned long)i * STACK, PAGE, PROT_NONE);
  unsigned most = (DYNAMIC_SHARED + PAGE - 1) / PAGE * PAGE;
  dynamic_page = (unsigned char*)reserve(most + PAGE) + most;  // the page behind the dynamic shared memory
  mprotect(dynamic_page, PAGE, PROT_NONE);
}

}  // namespace
}  // namespace cuda_on_cpu

using namespace cuda_on_cpu;

extern "C" State* cuda_on_cpu_state() {
  state.barrier = barrier;
  state.together = together;
  state.active = active;
  state.copy = copy;
  state.commit = commit;
  state.wait = wait;
  state.access = access;
  state.count = count_access;
  state.fail = fail;
  return &state;
}

extern "C" const char* cuda_on_cpu_refused(const Kernel* kernel, const Launch* launch) {
  const Kernel& k = *kernel;
  const Launch& l = *launch;
  unsigned long threads = (unsigned long)l.threads.x * l.threads.y * l.threads.z;
  if (threads == 0 || !l.blocks.x || !l.blocks.y || !l.blocks.z) return "a launch of nothing";
  if (threads > MOST || threads > k.max_threads || l.threads.z > 64) return "too many threads in a block";
  if (l.blocks.x > 0x7fffffffu || l.blocks.y > 65535 || l.blocks.z > 65535) return "too many blocks";
  if ((unsigned long)l.blocks.x * l.blocks.y * l.blocks.z > 0xffffffffu) return "too many blocks";
  if (k.shared_end - k.shared > STATIC_SHARED) return "too much static shared memory";
  if (l.dynamic + (k.shared_end - k.shared) > DYNAMIC_SHARED) return "too much dynamic shared memory";
  unsigned long bytes = 0;
  for (unsigned i = 0; i < k.parameters; i++) bytes += k.sizes[i];
  return bytes > 4096 ? "too many bytes of parameters" : nullptr;
}

extern "C" int cuda_on_cpu_run(const Kernel* k, void** given, const Launch* l, char* text, unsigned long size) {
  kernel = k;
  parameters = given;
  launch = *l;
  message = text;
  room = size;
  failed = false;
  current = fibers;
  state.blocks = l->blocks;
  state.threads = l->threads;
  if (const char* why = cuda_on_cpu_refused(k, l)) {
    snprintf(text, size, "%s: %s", k->name, why);
    return 1;
  }
  prepare();
  state.shared = k->shared;
  state.shared_end = k->shared_end;
  state.dynamic_bytes = l->dynamic;
  state.dynamic = dynamic_page - (l->dynamic + 15) / 16 * 16;
  Guard guard(on_signal);
  races_launch();
  cuda_on_cpu_switch(&home, fiber_start(stack_top(MOST), launcher_entry));
  return failed;
}
