// The language of CUDA kernels in C++, as far as TVM's generated text and ours use it. Included before the text.
#pragma once
#include "../core.h"

static cuda_on_cpu::State* cuda_on_cpu_now;  // set when the library is loaded

// What stands here has no lines: an access in it is one of the text's line that calls it.
#pragma clang attribute push(__attribute__((nodebug)), apply_to = hasType(functionType))
#include "math.h"
#include "watch.h"
#include "vectors.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 5
#define CUDART_VERSION 13050
// Every kernel has a section of its own, so that its shared memory can be found. compile.py defines its name.
#define __shared__ static __attribute__((section(CUDA_ON_CPU_SECTION), used))

// In a kernel these are constants (CUDA_ON_CPU_ENTER); in a function that a kernel calls they are looked up.
#define CUDA_ON_CPU_DIM(name, field)                                     \
  static struct {                                                        \
    struct { operator unsigned() const { return cuda_on_cpu_now->field.x; } } x; \
    struct { operator unsigned() const { return cuda_on_cpu_now->field.y; } } y; \
    struct { operator unsigned() const { return cuda_on_cpu_now->field.z; } } z; \
  } name __attribute__((unused))
CUDA_ON_CPU_DIM(threadIdx, thread);
CUDA_ON_CPU_DIM(blockIdx, block);
CUDA_ON_CPU_DIM(blockDim, threads);
CUDA_ON_CPU_DIM(gridDim, blocks);
#define CUDA_ON_CPU_ENTER                                                                              \
  __attribute__((unused)) const cuda_on_cpu::Dim threadIdx = cuda_on_cpu_now->thread;                  \
  __attribute__((unused)) const cuda_on_cpu::Dim blockIdx = cuda_on_cpu_now->block;                    \
  __attribute__((unused)) const cuda_on_cpu::Dim blockDim = cuda_on_cpu_now->threads;                  \
  __attribute__((unused)) const cuda_on_cpu::Dim gridDim = cuda_on_cpu_now->blocks;

static const int warpSize = 32;
#define __syncthreads() cuda_on_cpu_now->barrier(__LINE__)
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}

#include "warps.h"
#include "halves.h"
#include "ptx.h"

template <class T>
static inline T __ldg(const T* p) { return *p; }
static inline void __trap() { cuda_on_cpu_now->fail("__trap"); }

struct CudaOnCpuBits {
  template <class To, class From>
  static To as(From value) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &value, sizeof to);
    return to;
  }
};
static inline int __float_as_int(float x) { return CudaOnCpuBits::as<int>(x); }
static inline unsigned __float_as_uint(float x) { return CudaOnCpuBits::as<unsigned>(x); }
static inline float __int_as_float(int x) { return CudaOnCpuBits::as<float>(x); }
static inline float __uint_as_float(unsigned x) { return CudaOnCpuBits::as<float>(x); }
static inline long long __double_as_longlong(double x) { return CudaOnCpuBits::as<long long>(x); }
static inline double __longlong_as_double(long long x) { return CudaOnCpuBits::as<double>(x); }

// Atomic between fibers, as they are switched at barriers alone; whether the order shows is what the three orders say.
template <class T>
CUDA_ON_CPU_UNWATCHED static inline T atomicAdd(T* p, T value) { T before = *p; *p = before + value; return before; }
template <class T>
CUDA_ON_CPU_UNWATCHED static inline T atomicMax(T* p, T value) { T before = *p; *p = before < value ? value : before; return before; }
template <class T>
CUDA_ON_CPU_UNWATCHED static inline T atomicMin(T* p, T value) { T before = *p; *p = value < before ? value : before; return before; }
template <class T>
CUDA_ON_CPU_UNWATCHED static inline T atomicExch(T* p, T value) { T before = *p; *p = value; return before; }
template <class T>
CUDA_ON_CPU_UNWATCHED static inline T atomicCAS(T* p, T compare, T value) { T before = *p; if (before == compare) *p = value; return before; }
#pragma clang attribute pop
