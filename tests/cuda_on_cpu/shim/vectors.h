// float4 and its like, with CUDA's alignments.
#pragma once

#ifdef CUDA_ON_CPU_COUNTED
// One access of the whole: a compiler may take it apart only behind this.
#define CUDA_ON_CPU_COPIED(name)                                                                   \
  name() = default;                                                                                \
  __attribute__((noinline, no_sanitize("thread"))) name(const name& v) {                           \
    CUDA_ON_CPU_TELL(&v, sizeof v, false);                                                         \
    __builtin_memcpy((void*)this, &v, sizeof v);                                                   \
  }                                                                                                \
  __attribute__((noinline, no_sanitize("thread"))) name& operator=(const name& v) {                \
    CUDA_ON_CPU_TELL(&v, sizeof v, false);                                                         \
    CUDA_ON_CPU_TELL(this, sizeof v, true);                                                        \
    __builtin_memcpy((void*)this, &v, sizeof v);                                                   \
    return *this;                                                                                  \
  }
#else
#define CUDA_ON_CPU_COPIED(name)
#endif

#define CUDA_ON_CPU_VECTOR(name, type, a2, a4)                                                     \
  struct name##1 { type x; CUDA_ON_CPU_COPIED(name##1) };                                          \
  struct __attribute__((aligned(a2))) name##2 { type x, y; CUDA_ON_CPU_COPIED(name##2) };          \
  struct name##3 { type x, y, z; CUDA_ON_CPU_COPIED(name##3) };                                    \
  struct __attribute__((aligned(a4))) name##4 { type x, y, z, w; CUDA_ON_CPU_COPIED(name##4) };    \
  static inline name##1 make_##name##1(type x) { name##1 v; v.x = x; return v; }                   \
  static inline name##2 make_##name##2(type x, type y) { name##2 v; v.x = x; v.y = y; return v; }  \
  static inline name##3 make_##name##3(type x, type y, type z) {                                   \
    name##3 v; v.x = x; v.y = y; v.z = z; return v;                                                \
  }                                                                                                \
  static inline name##4 make_##name##4(type x, type y, type z, type w) {                           \
    name##4 v; v.x = x; v.y = y; v.z = z; v.w = w; return v;                                       \
  }

CUDA_ON_CPU_VECTOR(char, signed char, 2, 4)
CUDA_ON_CPU_VECTOR(uchar, unsigned char, 2, 4)
CUDA_ON_CPU_VECTOR(short, short, 4, 8)
CUDA_ON_CPU_VECTOR(ushort, unsigned short, 4, 8)
CUDA_ON_CPU_VECTOR(int, int, 8, 16)
CUDA_ON_CPU_VECTOR(uint, unsigned int, 8, 16)
CUDA_ON_CPU_VECTOR(long, long, 16, 16)
CUDA_ON_CPU_VECTOR(ulong, unsigned long, 16, 16)
CUDA_ON_CPU_VECTOR(longlong, long long, 16, 16)
CUDA_ON_CPU_VECTOR(ulonglong, unsigned long long, 16, 16)
CUDA_ON_CPU_VECTOR(float, float, 8, 16)
CUDA_ON_CPU_VECTOR(double, double, 16, 16)
