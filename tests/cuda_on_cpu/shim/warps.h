// Operations of a warp. Each lane brings a request; the last to come performs all of them.
#pragma once

struct WarpValue {
  unsigned long long bits;
  unsigned source;  // the lane whose bits are wanted
};

// What no lane gave: NaN, as f32 and as f64.
static const unsigned long long WARP_POISON = ~0ull;

static inline void cuda_on_cpu_exchange(void** lanes, unsigned group) {
  unsigned long long given[32];
  for (unsigned i = 0; i < 32; i++) given[i] = group >> i & 1 ? ((WarpValue*)lanes[i])->bits : WARP_POISON;
  for (unsigned i = 0; i < 32; i++)
    if (group >> i & 1) ((WarpValue*)lanes[i])->bits = given[((WarpValue*)lanes[i])->source];
}

template <class T>
static inline T cuda_on_cpu_shuffle(unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= 8, "a value of at most 64 bits");
  WarpValue mine = {0, source};
  __builtin_memcpy(&mine.bits, &value, sizeof value);
  cuda_on_cpu_now->together(cuda_on_cpu_exchange, &mine, mask);
  __builtin_memcpy(&value, &mine.bits, sizeof value);
  return value;
}

// The source lanes of PTX ISA 9.7.9.6 "shfl.sync", with c = ((32 - width) << 8) | 31, or without the 31 for up.
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  int lane = cuda_on_cpu_now->lane;
  return cuda_on_cpu_shuffle(mask, value, (lane & (32 - width)) | (from & (width - 1)));
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  int lane = cuda_on_cpu_now->lane, from = lane - (int)(by & 31);
  return cuda_on_cpu_shuffle(mask, value, from >= (lane & (32 - width)) ? from : lane);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  int lane = cuda_on_cpu_now->lane, from = lane + (int)(by & 31);
  return cuda_on_cpu_shuffle(mask, value, from <= ((lane & (32 - width)) | (width - 1)) ? from : lane);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  int lane = cuda_on_cpu_now->lane, from = lane ^ (with & 31);
  return cuda_on_cpu_shuffle(mask, value, from <= ((lane & (32 - width)) | (width - 1)) ? from : lane);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu) { cuda_on_cpu_now->together(nullptr, nullptr, mask); }

static inline void cuda_on_cpu_vote(void** lanes, unsigned group) {
  unsigned yes = 0;
  for (unsigned i = 0; i < 32; i++)
    if (group >> i & 1 && ((unsigned*)lanes[i])[0]) yes |= 1u << i;
  for (unsigned i = 0; i < 32; i++)
    if (group >> i & 1) {
      ((unsigned*)lanes[i])[0] = yes;
      ((unsigned*)lanes[i])[1] = group;
    }
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned mine[2] = {predicate != 0, 0};
  cuda_on_cpu_now->together(cuda_on_cpu_vote, mine, mask);
  return mine[0];
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) {
  unsigned mine[2] = {predicate != 0, 0};
  cuda_on_cpu_now->together(cuda_on_cpu_vote, mine, mask);
  return mine[0] == mine[1];
}
#define __activemask() cuda_on_cpu_now->active(__LINE__)
