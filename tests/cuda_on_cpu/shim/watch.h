// What clang's -fsanitize=thread calls before a load or store, in kernels that are watched for races (races.h).
#pragma once

#ifdef CUDA_ON_CPU_WATCHED
#define CUDA_ON_CPU_UNWATCHED __attribute__((no_sanitize("thread")))
#define CUDA_ON_CPU_READ(at, bytes) cuda_on_cpu_now->access(at, bytes, false)
#define CUDA_ON_CPU_CALLED extern "C" CUDA_ON_CPU_UNWATCHED __attribute__((visibility("hidden"), used))
#define CUDA_ON_CPU_TOLD(bytes)                                                                                \
  CUDA_ON_CPU_CALLED void __tsan_read##bytes(void* at) { cuda_on_cpu_now->access(at, bytes, false); }            \
  CUDA_ON_CPU_CALLED void __tsan_write##bytes(void* at) { cuda_on_cpu_now->access(at, bytes, true); }            \
  CUDA_ON_CPU_CALLED void __tsan_unaligned_read##bytes(void* at) { cuda_on_cpu_now->access(at, bytes, false); }  \
  CUDA_ON_CPU_CALLED void __tsan_unaligned_write##bytes(void* at) { cuda_on_cpu_now->access(at, bytes, true); }
CUDA_ON_CPU_TOLD(1)
CUDA_ON_CPU_TOLD(2)
CUDA_ON_CPU_TOLD(4)
CUDA_ON_CPU_TOLD(8)
CUDA_ON_CPU_TOLD(16)
CUDA_ON_CPU_CALLED void __tsan_init() {}
CUDA_ON_CPU_CALLED void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  cuda_on_cpu_now->access(from, bytes, false);
  cuda_on_cpu_now->access(to, bytes, true);
  return __builtin_memcpy(to, from, bytes);
}
CUDA_ON_CPU_CALLED void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  cuda_on_cpu_now->access(from, bytes, false);
  cuda_on_cpu_now->access(to, bytes, true);
  return __builtin_memmove(to, from, bytes);
}
CUDA_ON_CPU_CALLED void* __tsan_memset(void* to, int value, unsigned long bytes) {
  cuda_on_cpu_now->access(to, bytes, true);
  return __builtin_memset(to, value, bytes);
}
#else
#define CUDA_ON_CPU_UNWATCHED
#define CUDA_ON_CPU_READ(at, bytes)
#endif
