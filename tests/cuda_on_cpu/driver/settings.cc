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

const Settings& settings() {
  static Settings read_once = read();
  return read_once;
}

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
          "\"frees\": %llu, \"bytes\": %llu, \"most\": %llu, \"syncs\": %llu, \"error\": %d, \"overwritten\": %s}\n",
          c.launches, c.graph_launches_inside, c.graph_launches, c.mallocs, c.frees, c.bytes, c.most, c.syncs, lost,
          anything_overwritten() ? "true" : "false");
  fclose(file);
}

Error sticky() { return lost; }

Error lose(Error error, const char* why) {
  fprintf(stderr, "fake CUDA device: %s: %s\n", name_of(error), why);
  return lost = error;
}

Lock::Lock() { pthread_mutex_lock(&mutex); }
Lock::~Lock() { pthread_mutex_unlock(&mutex); }

const char* name_of(Error error) {
  switch (error) {
    case SUCCESS: return "CUDA_SUCCESS";
    case INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
    case OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
    case NOT_INITIALIZED: return "CUDA_ERROR_NOT_INITIALIZED";
    case NO_DEVICE: return "CUDA_ERROR_NO_DEVICE";
    case INVALID_DEVICE: return "CUDA_ERROR_INVALID_DEVICE";
    case INVALID_IMAGE: return "CUDA_ERROR_INVALID_IMAGE";
    case INVALID_CONTEXT: return "CUDA_ERROR_INVALID_CONTEXT";
    case NO_BINARY: return "CUDA_ERROR_NO_BINARY_FOR_GPU";
    case INVALID_HANDLE: return "CUDA_ERROR_INVALID_HANDLE";
    case NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
    case ILLEGAL_ADDRESS: return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case LAUNCH_FAILED: return "CUDA_ERROR_LAUNCH_FAILED";
    case NOT_SUPPORTED: return "CUDA_ERROR_NOT_SUPPORTED";
    case CAPTURE_UNSUPPORTED: return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case CAPTURE_INVALIDATED: return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    case CAPTURE_WRONG_STREAM: return "CUDA_ERROR_ILLEGAL_STATE";
  }
  return "CUDA_ERROR_UNKNOWN";
}

}  // namespace fake
