// libcuda.so.1: the driver's functions that the runner and libtvm_runtime_cuda.so call. A module is a line of text, the
// architecture it is for, and the shared object that compile.py makes of CUDA text.
#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "list.h"

using namespace fake;

namespace {

bool initialized;

struct Module {
  void* library;
  int file;  // open as long as it is loaded: the loader knows libraries by their paths, which have its number
  List<Function*> functions;
};

// The line "CUBIN sm_90" or "/PTX compute_80", and what it says of a device of this compute capability.
Error fits(const char* image) {
  int arch = 0, major = settings().major, minor = settings().minor;
  if (sscanf(image, "CUBIN sm_%d\n", &arch) == 1) return arch / 10 == major && arch % 10 <= minor ? SUCCESS : NO_BINARY;
  if (sscanf(image, "/PTX compute_%d\n", &arch) == 1) return arch <= 10 * major + minor ? SUCCESS : NO_BINARY;
  return INVALID_IMAGE;
}

// The bytes of a shared object: its section headers come last.
size_t length(const unsigned char* image) {
  if (memcmp(image, ELFMAG, SELFMAG)) return 0;
  const Elf64_Ehdr* head = (const Elf64_Ehdr*)image;
  return head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
}

bool load(Module* m, const unsigned char* image) {
  unsigned char head[sizeof(Elf64_Ehdr)];
  memcpy(head, image, sizeof head);  // the line before it leaves it unaligned
  size_t bytes = length(head);
  m->file = bytes ? memfd_create("cubin", MFD_CLOEXEC) : -1;
  if (m->file < 0) return false;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", m->file);
  if (write(m->file, image, bytes) == (ssize_t)bytes) m->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!m->library) fprintf(stderr, "fake CUDA device: %s\n", dlerror());
  return m->library;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) Error
#define ENTER                 \
  Lock lock;                  \
  if (sticky()) return sticky()
#define NEEDS_DEVICE(device) \
  if (!initialized) return NOT_INITIALIZED; \
  if ((device) < 0 || (device) >= settings().devices) return INVALID_DEVICE

API cuInit(unsigned) {
  Lock lock;
  if (settings().devices < 1) return NO_DEVICE;
  initialized = true;
  return SUCCESS;
}
API cuDriverGetVersion(int* out) {
  *out = settings().driver;
  return SUCCESS;
}
API cuDeviceGetCount(int* out) {
  if (!initialized) return NOT_INITIALIZED;
  *out = settings().devices;
  return SUCCESS;
}
API cuDeviceGet(int* out, int ordinal) {
  NEEDS_DEVICE(ordinal);
  *out = ordinal;
  return SUCCESS;
}
API cuDeviceGetName(char* out, int room, int device) {
  if (device < 0 || device >= settings().devices) return INVALID_DEVICE;
  snprintf(out, room, "Fake %d.%d", settings().major, settings().minor);
  return SUCCESS;
}
API fake_attribute(int* out, int which, int device) {
  if (device < 0 || device >= settings().devices) return INVALID_DEVICE;
  switch (which) {
    case 1: case 2: case 3: *out = 1024; break;  // threads of a block: all, along x, along y
    case 4: *out = 64; break;                    // along z
    case 5: *out = 0x7fffffff; break;            // blocks along x
    case 6: case 7: *out = 65535; break;
    case 8: *out = 48 << 10; break;  // shared memory of a block
    case 10: *out = 32; break;       // a warp
    case 12: *out = 65536; break;    // registers of a block
    case 13: *out = 1000000; break;  // kHz
    case 16: *out = 132; break;      // multiprocessors
    case 38: *out = 50 << 20; break;  // second cache
    case 75: *out = settings().major; break;
    case 76: *out = settings().minor; break;
    case 81: *out = 228 << 10; break;  // shared memory of a multiprocessor
    case 97: *out = 227 << 10; break;  // of a block that asks for it
    default: *out = 0;
  }
  return SUCCESS;
}
API cuDeviceGetAttribute(int* out, int which, int device) {
  NEEDS_DEVICE(device);
  return fake_attribute(out, which, device);
}
API cuDeviceTotalMem_v2(size_t* out, int device) {
  NEEDS_DEVICE(device);
  *out = settings().memory;
  return SUCCESS;
}
API cuGetErrorName(Error error, const char** out) {
  *out = name_of(error, false);
  return SUCCESS;
}
API cuGetErrorString(Error error, const char** out) { return cuGetErrorName(error, out); }
API cuDevicePrimaryCtxRetain(void** out, int device) {
  NEEDS_DEVICE(device);
  static int context;
  *out = &context;
  return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
  NEEDS_DEVICE(device);
  return SUCCESS;
}
API cuCtxSetCurrent(void*) { return SUCCESS; }
API cuMemGetInfo_v2(size_t* free, size_t* all) {
  ENTER;
  *free = bytes_free();
  *all = settings().memory;
  return SUCCESS;
}

API cuModuleLoadData(Module** out, const void* image) {
  ENTER;
  if (Error e = unsafe_in_capture()) return e;
  if (Error e = fits((const char*)image)) return e;
  Module* m = (Module*)calloc(1, sizeof(Module));
  if (!load(m, (const unsigned char*)strchr((const char*)image, '\n') + 1)) return INVALID_IMAGE;
  const cuda_on_cpu::Kernel* kernels = (const cuda_on_cpu::Kernel*)dlsym(m->library, "cuda_on_cpu_kernels");
  void (*attach)(cuda_on_cpu::State*) = (void (*)(cuda_on_cpu::State*))dlsym(m->library, "cuda_on_cpu_attach");
  if (!kernels || !attach) return INVALID_IMAGE;
  attach(cuda_on_cpu_state());
  for (; kernels->name; kernels++) {
    Function* f = (Function*)calloc(1, sizeof(Function));
    f->kernel = kernels;
    f->most_dynamic = 48 << 10;
    m->functions.add(f);
  }
  *out = m;
  return SUCCESS;
}
API cuModuleUnload(Module* m) {
  ENTER;
  if (Error e = everything()) return e;
  dlclose(m->library);
  close(m->file);
  for (size_t i = 0; i < m->functions.size; i++) free(m->functions.items[i]);
  free(m->functions.items);
  free(m);
  return SUCCESS;
}
API cuModuleGetFunction(Function** out, Module* m, const char* name) {
  ENTER;
  for (size_t i = 0; i < m->functions.size; i++)
    if (!strcmp(m->functions.items[i]->kernel->name, name)) {
      *out = m->functions.items[i];
      return SUCCESS;
    }
  return NOT_FOUND;
}
API cuFuncSetAttribute(Function* f, int which, int value) {
  ENTER;
  const int most_dynamic = 8;
  if (which == most_dynamic) {
    if (value < 0 || value > 227 << 10) return INVALID_VALUE;
    f->most_dynamic = value;
  }
  return SUCCESS;
}

struct LaunchConfig {  // CUlaunchConfig
  unsigned blocks[3], threads[3], dynamic;
  Stream* stream;
  void* attributes;
  unsigned attribute_count;
};

API cuLaunchKernelEx(const LaunchConfig* c, Function* f, void** parameters, void** extra) {
  ENTER;
  if (c->attribute_count || extra) return NOT_SUPPORTED;
  cuda_on_cpu::Launch l;
  memset(&l, 0, sizeof l);
  memcpy(&l.blocks, c->blocks, sizeof c->blocks);
  memcpy(&l.threads, c->threads, sizeof c->threads);
  l.dynamic = c->dynamic;
  return launch(f, l, c->stream, parameters);
}
API cuTensorMapEncodeTiled() { return NOT_SUPPORTED; }
// In which order kernels take their threads from now on: 0 forward, 1 reverse, 2 hashed.
API fake_cuda_order(int order) {
  ENTER;
  if (Error e = everything()) return e;
  return reorder(order), SUCCESS;
}
