// While kernels run, a fault is the kernel's.
#pragma once
#include <signal.h>
#include <string.h>

namespace cuda_on_cpu {

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};
const int SIGNAL_COUNT = sizeof SIGNALS / sizeof *SIGNALS;

// The signals of a fault are ours, on a stack of our own.
struct Guard {
  struct sigaction before[SIGNAL_COUNT];
  stack_t stack_before;
  explicit Guard(void (*on_signal)(int, siginfo_t*, void*)) {
    static unsigned char room[64 << 10];
    stack_t ours;
    memset(&ours, 0, sizeof ours);
    ours.ss_sp = room;
    ours.ss_size = sizeof room;
    sigaltstack(&ours, &stack_before);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < SIGNAL_COUNT; i++) sigaction(SIGNALS[i], &action, &before[i]);
  }
  ~Guard() {
    for (int i = 0; i < SIGNAL_COUNT; i++) sigaction(SIGNALS[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
  }
};

}  // namespace cuda_on_cpu
