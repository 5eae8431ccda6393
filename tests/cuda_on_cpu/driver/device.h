// A GPU that is not there: memory, streams and graphs of both fake libraries. All of it lives in libcuda.so.1.
//
// Work that is queued on a stream runs when somebody waits for it, so that a host which does not wait sees poison. So do
// copies to the host's memory, pageable or not: of that which is not page-locked CUDA only says that a copy to it might be
// over when the call returns.
// An address of device memory is never one of the host's: what the host holds lies in a range that nobody may touch,
// and kernels and copies find the memory at a fixed distance from it.
#pragma once

#include <stddef.h>

#include "../core.h"

namespace fake {

typedef int Error;  // numbered alike in both APIs
const Error SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101,
            INVALID_IMAGE = 200, NO_BINARY = 209, NO_DEVICE = 100, INVALID_HANDLE = 400, ILLEGAL_STATE = 401,
            NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801,
            CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901;
const char* name_of(Error, bool runtime);  // as the runtime's or the driver's functions call it

// From the environment: FAKE_CUDA_DEVICES, _DRIVER (13000), _CC (9.0), _MEMORY and _FREE (bytes), _ORDER (forward,
// reverse, hashed), _EAGER (work runs when it is queued), _LOST_AFTER (launches), _COUNTERS (a file).
struct Settings {
  int devices, driver, major, minor, order;
  bool eager;
  size_t memory, free, alignment;
  long lost_after;
  const char* counters;
};
const Settings& settings();
void reorder(int order);

struct Counters {
  unsigned long long launches, graph_launches_inside, graph_launches, mallocs, frees, bytes, most, syncs;
  // Copies between host and device that were asked for outside of captures, those of pageable memory among them, and
  // executable graphs that were made, with their nodes.
  unsigned long long to_host, to_device, pageable, graphs, nodes;
};
Counters& counters();
void write_counters();

// The first error of a kernel: from then on every call answers it, as on the device.
Error sticky();
Error lose(Error, const char* why);

struct Lock {
  Lock();
  ~Lock();
};

// memory.cc
Error allocate(void** out, size_t bytes);
Error release(void* address);
Error allocate_host(void** out, size_t bytes);
Error release_host(void* address);
bool on_device(const void* address);
bool pinned(const void* address);
// Where ``bytes`` at a device address really lie; null if they are not all of one living allocation.
unsigned char* real(const void* address, size_t bytes);
bool anything_overwritten();  // poison beside an allocation is gone
size_t bytes_free();

// queue.cc
struct Node;
struct Stream;
struct Event;
struct Graph;
struct Exec;

struct Function {
  const cuda_on_cpu::Kernel* kernel;
  unsigned most_dynamic;
};

Error create_stream(Stream** out, bool blocking);
Error destroy_stream(Stream*);
Error synchronize(Stream*);
Error launch(Function*, const cuda_on_cpu::Launch&, Stream*, void** parameters);
Error copy(void* to, const void* from, size_t bytes, int kind, Stream*);
Error set(void* to, int value, size_t bytes, Stream*);
Error create_event(Event** out, bool timed);
Error destroy_event(Event*);
Error record(Event*, Stream*);
Error wait_event(Stream*, Event*);
Error synchronize(Event*);
Error between(Event*, Event*, size_t* out);  // what was asked of their stream after one and before the other
Error begin_capture(Stream*, int mode);
Error end_capture(Stream*, Graph** out);
Error instantiate(Graph*, Exec** out);
Error launch(Exec*, Stream*);
Error destroy(Graph*);
Error destroy(Exec*);
size_t nodes_of(Graph*);
Error unsafe_in_capture();  // for a call that a capture which is not relaxed forbids: invalidates it
Error everything();         // runs what is queued anywhere

// A list of what may be copied byte by byte.
template <class T>
struct List {
  T* items = nullptr;
  size_t size = 0, room = 0;
  void add(const T& item);
  void remove(const T& item);
};

}  // namespace fake
