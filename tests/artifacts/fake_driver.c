/* A libcuda.so.1 that answers questions and does nothing else. What it answers stands in the environment:
   FAKE_CUDA_INIT  what cuInit returns (0)         FAKE_CUDA_DEVICES  how many GPUs there are (1)
   FAKE_CUDA_DRIVER  CUDA version (13000)          FAKE_CUDA_CC       compute capability, 90 for 9.0
   FAKE_CUDA_FREE  bytes of memory that are free   FAKE_CUDA_CONTEXT  what making a context returns (0)
   Needs no header and no library to build: getenv is found in the process that loads it. */
typedef unsigned long size;
extern char *getenv(const char *);

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  long value = 0;
  if (!text || !*text) return otherwise;
  for (; *text >= '0' && *text <= '9'; ++text) value = 10 * value + (*text - '0');
  return value;
}

int cuInit(unsigned flags) { return number("FAKE_CUDA_INIT", 0); }
int cuDriverGetVersion(int *out) { return *out = number("FAKE_CUDA_DRIVER", 13000), 0; }
int cuDeviceGetCount(int *out) { return *out = number("FAKE_CUDA_DEVICES", 1), 0; }
int cuDeviceGet(int *out, int ordinal) { return *out = ordinal, 0; }

int cuDeviceGetName(char *out, int length, int device) {
  const char *name = "Fake GPU";
  while (length-- > 1 && *name) *out++ = *name++;
  return *out = 0, 0;
}

int cuDeviceGetAttribute(int *out, int attribute, int device) {
  long capability = number("FAKE_CUDA_CC", 90);
  *out = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : 0;
  return 0;
}

int cuGetErrorName(int status, const char **out) {
  switch (status) {
    case 2: *out = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
    case 46: *out = "CUDA_ERROR_DEVICE_UNAVAILABLE"; return 0;
    case 100: *out = "CUDA_ERROR_NO_DEVICE"; return 0;
    case 802: *out = "CUDA_ERROR_SYSTEM_NOT_READY"; return 0;
    case 803: *out = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; return 0;
  }
  return *out = 0, 1;
}

int cuDevicePrimaryCtxRetain(void **out, int device) {
  *out = (void *)1;
  return number("FAKE_CUDA_CONTEXT", 0);
}

int cuCtxSetCurrent(void *context) { return 0; }

int cuMemGetInfo_v2(size *free, size *total) {
  *free = number("FAKE_CUDA_FREE", 1L << 34);
  *total = 1L << 36;
  return 0;
}
