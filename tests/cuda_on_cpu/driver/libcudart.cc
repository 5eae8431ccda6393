// libcudart.so.13: the runtime's functions that the runner and libtvm_runtime_cuda.so call, on the same device.
#include <stdio.h>

#include "list.h"

using namespace fake;

namespace {

Error last;
int current_device;

Error answer(Error error) {
  if (error) last = error;
  return error;
}

}  // namespace

extern "C" Error fake_attribute(int* out, int which, int device);

#define API extern "C" __attribute__((visibility("default"))) Error
#define ENTER                 \
  Lock lock;                  \
  if (sticky()) return answer(sticky()); \
  if (settings().devices < 1) return answer(NO_DEVICE)

API cudaGetDeviceCount(int* out) {
  Lock lock;
  *out = settings().devices;
  return settings().devices < 1 ? answer(NO_DEVICE) : SUCCESS;
}
API cudaSetDevice(int device) {
  ENTER;
  if (device < 0 || device >= settings().devices) return answer(INVALID_DEVICE);
  current_device = device;
  return SUCCESS;
}
API cudaGetDevice(int* out) {
  ENTER;
  *out = current_device;
  return SUCCESS;
}
API cudaDeviceGetAttribute(int* out, int which, int device) {
  ENTER;
  return answer(fake_attribute(out, which, device));
}

struct Properties {  // the beginning of cudaDeviceProp
  char name[256], uuid[16], luid[8];
  unsigned mask;
  size_t memory;
};

API cudaGetDeviceProperties(Properties* out, int device) {
  ENTER;
  if (device < 0 || device >= settings().devices) return answer(INVALID_DEVICE);
  memset(out, 0, sizeof *out);
  snprintf(out->name, sizeof out->name, "Fake %d.%d", settings().major, settings().minor);
  out->memory = settings().memory;
  return SUCCESS;
}
API cudaMemGetInfo(size_t* free, size_t* all) {
  ENTER;
  *free = bytes_free();
  *all = settings().memory;
  return SUCCESS;
}
API cudaMalloc(void** out, size_t bytes) {
  ENTER;
  return answer(allocate(out, bytes));
}
API cudaFree(void* address) {
  ENTER;
  return answer(release(address));
}
API cudaMallocHost(void** out, size_t bytes) {
  ENTER;
  return answer(allocate_host(out, bytes));
}
API cudaFreeHost(void* address) {
  ENTER;
  return answer(release_host(address));
}
API cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, Stream* stream) {
  ENTER;
  return answer(copy(to, from, bytes, kind, stream));
}
API cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, Stream* stream) {
  ENTER;
  if (to_device >= settings().devices || from_device >= settings().devices) return answer(INVALID_DEVICE);
  return answer(copy(to, from, bytes, 3, stream));
}
API cudaMemsetAsync(void* to, int value, size_t bytes, Stream* stream) {
  ENTER;
  return answer(set(to, value, bytes, stream));
}

API cudaStreamCreate(Stream** out) {
  ENTER;
  return answer(create_stream(out, true));
}
API cudaStreamCreateWithFlags(Stream** out, unsigned flags) {
  ENTER;
  return answer(create_stream(out, !(flags & 1)));  // cudaStreamNonBlocking
}
API cudaStreamDestroy(Stream* stream) {
  ENTER;
  return answer(destroy_stream(stream));
}
API cudaStreamSynchronize(Stream* stream) {
  ENTER;
  return answer(synchronize(stream));
}
API cudaDeviceSynchronize() {
  ENTER;
  if (Error e = unsafe_in_capture()) return answer(e);
  return answer(everything());
}
API cudaStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  ENTER;
  return answer(wait_event(stream, event));
}
API cudaEventCreate(Event** out) {
  ENTER;
  return answer(create_event(out, true));
}
API cudaEventCreateWithFlags(Event** out, unsigned flags) {
  ENTER;
  const unsigned blocking = 1, untimed = 2;
  if (flags & ~(blocking | untimed)) return answer(INVALID_VALUE);
  return answer(create_event(out, !(flags & untimed)));
}
API cudaEventDestroy(Event* event) {
  ENTER;
  return answer(destroy_event(event));
}
API cudaEventRecord(Event* event, Stream* stream) {
  ENTER;
  return answer(record(event, stream));
}
API cudaEventSynchronize(Event* event) {
  ENTER;
  return answer(synchronize(event));
}
API cudaEventElapsedTime(float* out, Event* from, Event* to) {
  ENTER;
  size_t pieces = 0;
  Error error = between(from, to, &pieces);
  *out = 0.001f + pieces;  // a millisecond for whatever was asked of the stream between the two
  return answer(error);
}

API cudaStreamBeginCapture(Stream* stream, int mode) {
  ENTER;
  return answer(begin_capture(stream, mode));
}
API cudaStreamEndCapture(Stream* stream, Graph** out) {
  ENTER;
  return answer(end_capture(stream, out));
}
API cudaGraphInstantiate(Exec** out, Graph* graph, unsigned long long) {
  ENTER;
  return answer(instantiate(graph, out));
}
API cudaGraphLaunch(Exec* exec, Stream* stream) {
  ENTER;
  return answer(launch(exec, stream));
}
API cudaGraphDestroy(Graph* graph) {
  ENTER;
  return answer(destroy(graph));
}
API cudaGraphExecDestroy(Exec* exec) {
  ENTER;
  return answer(destroy(exec));
}
API cudaGraphGetNodes(Graph* graph, void** nodes, size_t* count) {
  ENTER;
  if (nodes) return answer(NOT_SUPPORTED);
  *count = nodes_of(graph);
  return SUCCESS;
}

API cudaGetLastError() {
  Lock lock;
  Error error = sticky() ? sticky() : last;
  last = SUCCESS;
  return error;
}
API cudaPeekAtLastError() {
  Lock lock;
  return sticky() ? sticky() : last;
}
extern "C" __attribute__((visibility("default"))) const char* cudaGetErrorName(Error error) {
  return name_of(error, true);
}
extern "C" __attribute__((visibility("default"))) const char* cudaGetErrorString(Error error) {
  return name_of(error, true);
}
// Launches outside of graphs and inside, launches of graphs, cudaMalloc, cudaFree, bytes now, most bytes, waits.
extern "C" __attribute__((visibility("default"))) void fake_cuda_counters(unsigned long long* out) {
  memcpy(out, &counters(), 8 * sizeof *out);
}
