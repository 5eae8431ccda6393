// Switching stacks: what a call must keep is pushed, the stack pointer exchanged, and the other's popped.
#pragma once

extern "C" void cuda_on_cpu_switch(void** from, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.globl cuda_on_cpu_switch
.hidden cuda_on_cpu_switch
.type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");
static inline void* fiber_start(unsigned char* top, void (*entry)()) {
  void** sp = (void**)((unsigned long)top & ~15ul);
  *--sp = nullptr;  // where a return address would be: the stack is as after a call
  *--sp = (void*)entry;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  return sp;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl cuda_on_cpu_switch
.hidden cuda_on_cpu_switch
.type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
static inline void* fiber_start(unsigned char* top, void (*entry)()) {
  void** sp = (void**)((unsigned long)top & ~15ul) - 20;
  for (int i = 0; i < 20; i++) sp[i] = nullptr;
  sp[11] = (void*)entry;  // x30, the return address
  return sp;
}
#else
#error "fibers are written for x86-64 and aarch64"
#endif
