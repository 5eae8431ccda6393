// float4 and its like, with CUDA's alignments.
#pragma once

#define CUDA_ON_CPU_VECTOR(name, type, a2, a4)                                                     \
  struct name##1 { type x; };                                                                      \
  struct __attribute__((aligned(a2))) name##2 { type x, y; };                                      \
  struct name##3 { type x, y, z; };                                                                \
  struct __attribute__((aligned(a4))) name##4 { type x, y, z, w; };                                \
  static inline name##1 make_##name##1(type x) { name##1 v = {x}; return v; }                      \
  static inline name##2 make_##name##2(type x, type y) { name##2 v = {x, y}; return v; }           \
  static inline name##3 make_##name##3(type x, type y, type z) { name##3 v = {x, y, z}; return v; } \
  static inline name##4 make_##name##4(type x, type y, type z, type w) { name##4 v = {x, y, z, w}; return v; }

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
