// What the fake device pretends to be, what it counted, and whether it is lost.
#include <pthread.h>
#include <stdio.h>

#include "list.h"

namespace fake {
namespace {

long number(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

Settings read() {
  Settings s;
  s.devices = number("FAKE_CUDA_DEVICES", 1);
  s.driver = number("FAKE_CUDA_DRIVER", 13000);
  const char* capability = getenv("FAKE_CUDA_CC");
  if (!capability || !*capability) capability = "9.0";
  s.major = atoi(capability);
  const char* dot = strchr(capability, '.');
  s.minor = dot ? atoi(dot + 1) : 0;
  s.memory = number("FAKE_CUDA_MEMORY", (long)80 << 30);
  s.free = number("FAKE_CUDA_FREE", s.memory);
  s.alignment = number("FAKE_CUDA_ALIGNMENT", 16);  // as close to the page as a vector allows
  s.eager = number("FAKE_CUDA_EAGER", 0);
  s.lost_after = number("FAKE_CUDA_LOST_AFTER", -1);
  s.counters = getenv("FAKE_CUDA_COUNTERS");
  const char* order = getenv("FAKE_CUDA_ORDER");
  s.order = !order || !*order || *order == 'f' ? cuda_on_cpu::FORWARD
            : *order == 'r'                    ? cuda_on_cpu::REVERSE
                                               : cuda_on_cpu::HASHED;
  return s;
}

pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
Error lost = SUCCESS;

__attribute__((destructor)) void at_exit() { write_counters(); }

}  // namespace

Settings& changeable() {
  static Settings read_once = read();
  return read_once;
}

const Settings& settings() { return changeable(); }
void reorder(int order) { changeable().order = order; }

Counters& counters() {
  static Counters all;
  return all;
}

void write_counters() {
  if (!settings().counters) return;
  FILE* file = fopen(settings().counters, "w");
  if (!file) return;
  const Counters& c = counters();
  fprintf(file,
          "{\"launches\": %llu, \"graph_launches_inside\": %llu, \"graph_launches\": %llu, \"mallocs\": %llu, "
          "\"frees\": %llu, \"bytes\": %llu, \"most\": %llu, \"syncs\": %llu, \"to_host\": %llu, \"to_device\": %llu, "
          "\"pageable\": %llu, \"graphs\": %llu, \"nodes\": %llu, \"error\": %d, \"overwritten\": %s}\n",
          c.launches, c.graph_launches_inside, c.graph_launches, c.mallocs, c.frees, c.bytes, c.most, c.syncs, c.to_host,
          c.to_device, c.pageable, c.graphs, c.nodes, lost, anything_overwritten() ? "true" : "false");
  fclose(file);
}

Error sticky() { return lost; }

Error lose(Error error, const char* why) {
  fprintf(stderr, "fake CUDA device: %s: %s\n", name_of(error, false), why);
  return lost = error;
}

Lock::Lock() { pthread_mutex_lock(&mutex); }
Lock::~Lock() { pthread_mutex_unlock(&mutex); }

namespace {

struct Name {
  Error error;
  const char *driver, *runtime;
};

const Name NAMES[] = {
    {SUCCESS, "CUDA_SUCCESS", "cudaSuccess"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "cudaErrorInitializationError"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "cudaErrorInvalidDevice"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "cudaErrorInvalidKernelImage"},
    {NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "cudaErrorNoKernelImageForDevice"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "cudaErrorInvalidResourceHandle"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "cudaErrorIllegalState"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "cudaErrorSymbolNotFound"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "cudaErrorNotSupported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "cudaErrorStreamCaptureUnsupported"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "cudaErrorStreamCaptureInvalidated"},
};

}  // namespace

const char* name_of(Error error, bool runtime) {
  for (const Name& name : NAMES)
    if (name.error == error) return runtime ? name.runtime : name.driver;
  return runtime ? "cudaErrorUnknown" : "CUDA_ERROR_UNKNOWN";
}

}  // namespace fake
