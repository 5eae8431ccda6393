// What clang's -fsanitize=thread calls before a load or store, in kernels that are watched for races (races.h) or whose
// accesses are counted (counts.h). CUDA_ON_CPU_INSTRUCTION: a function that stands for one instruction, so that the
// place of its call is that of the access.
#pragma once

#ifdef CUDA_ON_CPU_COUNTED
#define CUDA_ON_CPU_TELL(at, bytes, write) cuda_on_cpu_now->count(at, bytes, write, __builtin_return_address(0))
#define CUDA_ON_CPU_INSTRUCTION __attribute__((noinline, no_sanitize("thread"))) static
#define CUDA_ON_CPU_PART __attribute__((always_inline, no_sanitize("thread"))) static inline
extern "C" __attribute__((visibility("hidden"))) const cuda_on_cpu::Site cuda_on_cpu_sites[];  // compile.py adds it
#define CUDA_ON_CPU_SITES cuda_on_cpu_sites
#else
#define CUDA_ON_CPU_SITES nullptr
#define CUDA_ON_CPU_TELL(at, bytes, write) cuda_on_cpu_now->access(at, bytes, write)
#define CUDA_ON_CPU_INSTRUCTION static inline
#define CUDA_ON_CPU_PART static inline
#endif

#ifdef CUDA_ON_CPU_WATCHED
#define CUDA_ON_CPU_UNWATCHED __attribute__((no_sanitize("thread")))
#define CUDA_ON_CPU_READ(at, bytes) CUDA_ON_CPU_TELL(at, bytes, false)
#define CUDA_ON_CPU_CALLED extern "C" CUDA_ON_CPU_UNWATCHED __attribute__((visibility("hidden"), used, noinline))
#define CUDA_ON_CPU_TOLD(bytes)                                                                   \
  CUDA_ON_CPU_CALLED void __tsan_read##bytes(void* at) { CUDA_ON_CPU_TELL(at, bytes, false); }            \
  CUDA_ON_CPU_CALLED void __tsan_write##bytes(void* at) { CUDA_ON_CPU_TELL(at, bytes, true); }            \
  CUDA_ON_CPU_CALLED void __tsan_unaligned_read##bytes(void* at) { CUDA_ON_CPU_TELL(at, bytes, false); }  \
  CUDA_ON_CPU_CALLED void __tsan_unaligned_write##bytes(void* at) { CUDA_ON_CPU_TELL(at, bytes, true); }
CUDA_ON_CPU_TOLD(1)
CUDA_ON_CPU_TOLD(2)
CUDA_ON_CPU_TOLD(4)
CUDA_ON_CPU_TOLD(8)
CUDA_ON_CPU_TOLD(16)
CUDA_ON_CPU_CALLED void __tsan_init() {}
CUDA_ON_CPU_CALLED void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  CUDA_ON_CPU_TELL(from, bytes, false);
  CUDA_ON_CPU_TELL(to, bytes, true);
  return __builtin_memcpy(to, from, bytes);
}
CUDA_ON_CPU_CALLED void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  CUDA_ON_CPU_TELL(from, bytes, false);
  CUDA_ON_CPU_TELL(to, bytes, true);
  return __builtin_memmove(to, from, bytes);
}
CUDA_ON_CPU_CALLED void* __tsan_memset(void* to, int value, unsigned long bytes) {
  CUDA_ON_CPU_TELL(to, bytes, true);
  return __builtin_memset(to, value, bytes);
}
#else
#define CUDA_ON_CPU_UNWATCHED
#define CUDA_ON_CPU_READ(at, bytes)
#endif
