// What a kernel's library and the launcher share.
//
// Every thread of a block is a fiber. Fibers of a warp run until each waits or has ended, then the next warp's; a
// barrier or an operation of a warp is where one waits.
#pragma once

namespace cuda_on_cpu {

struct Dim {
  unsigned x, y, z;
};

// An operation of a warp: ``lanes[i]`` is what lane i brought, for the bits of ``group``.
typedef void (*Operation)(void** lanes, unsigned group);

struct State {
  Dim thread, block, threads, blocks;  // threadIdx, blockIdx, blockDim, gridDim
  unsigned index, lane;                // of the thread in its block, in its warp
  unsigned char *shared, *shared_end;  // the kernel's static shared memory
  unsigned char* dynamic;              // this launch's dynamic shared memory
  unsigned dynamic_bytes;

  void (*barrier)(int line);
  // Returns when every living lane of ``mask`` has come with the same operation and mask, and it was performed. None:
  // __syncwarp, which orders the memory of these lanes.
  void (*together)(Operation operation, void* mine, unsigned mask);
  // The lanes that wait at the same line once no lane of the warp can go on.
  unsigned (*active)(int line);
  void (*copy)(void* shared, const void* global, unsigned bytes, unsigned filled);  // cp.async
  void (*commit)();                                                                 // cp.async.commit_group
  void (*wait)(unsigned left);                                                      // cp.async.wait_group
  void (*access)(const void* at, unsigned bytes, bool write);                       // of a watched kernel
  void (*count)(const void* at, unsigned bytes, bool write, const void* site);      // of a counted one
  void (*fail)(const char* why);                                                    // does not return
};

// A call in a counted kernel: where it returns to, and its line of the translated text.
struct Site {
  const void* at;
  long line;
};

struct Kernel {
  const char* name;
  void (*call)(void** parameters);  // pointers to the values, as cuLaunchKernel takes them
  unsigned parameters;
  const unsigned* sizes;          // bytes of each
  const unsigned char* pointers;  // 1 for each that is the address of a tensor
  unsigned char* shared;  // static shared memory, up to shared_end
  unsigned char* shared_end;
  unsigned max_threads;  // __launch_bounds__, 1024 for none
  bool waits;            // has a barrier or an operation of a warp
  const Site* sites;     // of a counted kernel, up to one of no place
};

enum Order { FORWARD, REVERSE, HASHED };

struct Launch {
  Dim blocks, threads;
  unsigned dynamic;  // bytes
  int order;
};

}  // namespace cuda_on_cpu

extern "C" {
cuda_on_cpu::State* cuda_on_cpu_state();
// Why a GPU would not take the launch, or null.
const char* cuda_on_cpu_refused(const cuda_on_cpu::Kernel*, const cuda_on_cpu::Launch*);
// 0, or 1 and why in ``message``.
int cuda_on_cpu_run(const cuda_on_cpu::Kernel*, void** parameters, const cuda_on_cpu::Launch*, char* message,
                    unsigned long room);
}
