// Streams, events and graphs. A queue's work runs in its order, up to where somebody waits.
#include <stdio.h>

#include "list.h"

namespace fake {

enum Kind { KERNEL, COPY, SET, GRAPH, WAIT };
const int HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3;
const int RELAXED = 2, POISON = 0xff;

struct Queue {
  List<Node*> nodes;
  size_t done = 0;
};

struct Node {
  Kind kind;
  const cuda_on_cpu::Kernel* kernel;
  cuda_on_cpu::Launch launch;
  unsigned char* values;  // of the parameters, one after the other, or what a copy staged
  void* to;
  const void* from;
  size_t bytes;
  int value;    // SET: the byte. COPY: between what
  Exec* graph;  // GRAPH
  Queue* other;   // WAIT: for this queue
  size_t upto;    // to have done so many
};

struct Stream {
  Queue* queue;
  Graph* capture;
  int mode;
  bool invalid;
};

struct Event {
  Queue* queue;
  size_t upto;
  bool timed;
};

struct Graph {
  List<Node*> nodes;
};

struct Exec {
  List<Node*> nodes;
};

namespace {

Queue legacy;  // of the null stream and of all that wait for it
Stream null_stream = {&legacy, nullptr, 0, false};
List<Queue*> queues;
List<Stream*> capturing;

Stream* of(Stream* handle) { return (size_t)handle <= 2 ? &null_stream : handle; }

Node* make(Kind kind) {
  Node* n = (Node*)calloc(1, sizeof(Node));
  n->kind = kind;
  return n;
}

unsigned bytes_of(const cuda_on_cpu::Kernel& k) {
  unsigned bytes = 0;
  for (unsigned i = 0; i < k.parameters; i++) bytes += (k.sizes[i] + 7) / 8 * 8;
  return bytes;
}

Node* clone(const Node* n) {
  Node* copy = make(n->kind);
  *copy = *n;
  if (n->values) {
    size_t bytes = n->kind == KERNEL ? bytes_of(*n->kernel) : n->bytes;
    copy->values = (unsigned char*)malloc(bytes + 1);
    memcpy(copy->values, n->values, bytes);
  }
  return copy;
}

void drop(Node* n) {
  free(n->values);
  free(n);
}

Error run_kernel(const Node* n) {
  const cuda_on_cpu::Kernel& k = *n->kernel;
  unsigned char* values = (unsigned char*)malloc(bytes_of(k) + 1);
  void** parameters = (void**)malloc((k.parameters + 1) * sizeof(void*));
  memcpy(values, n->values, bytes_of(k));
  unsigned char* at = values;
  char message[512] = "";
  Error error = SUCCESS;
  for (unsigned i = 0; i < k.parameters; at += (k.sizes[i++] + 7) / 8 * 8) {
    parameters[i] = at;
    void*& pointer = *(void**)at;
    if (!k.pointers[i] || !pointer) continue;
    pointer = real(pointer, 0);
    if (pointer) continue;
    snprintf(message, sizeof message, "%s: parameter %u is no address of a living allocation", k.name, i);
    error = ILLEGAL_ADDRESS;
  }
  if (!error && cuda_on_cpu_run(&k, parameters, &n->launch, message, sizeof message)) error = LAUNCH_FAILED;
  free(values);
  free(parameters);
  if (error && strstr(message, "a load or store outside")) error = ILLEGAL_ADDRESS;
  return error ? lose(error, message) : SUCCESS;
}

Error run_copy(const Node* n) {
  bool to_device = n->value == HOST_TO_DEVICE || n->value == DEVICE_TO_DEVICE;
  bool from_device = n->value == DEVICE_TO_HOST || n->value == DEVICE_TO_DEVICE;
  void* to = to_device ? real(n->to, n->bytes) : n->to;
  const void* from = from_device ? real(n->from, n->bytes) : n->values ? n->values : n->from;
  if (!to || !from) return lose(ILLEGAL_ADDRESS, "a copy from or to memory that is no longer there");
  memmove(to, from, n->bytes);
  return SUCCESS;
}

Error run(Queue*, size_t upto);

Error perform(const Node* n, bool inside) {
  switch (n->kind) {
    case KERNEL: {
      unsigned long long& count = inside ? counters().graph_launches_inside : counters().launches;
      count++;
      long all = counters().launches + counters().graph_launches_inside;
      if (settings().lost_after >= 0 && all > settings().lost_after)
        return lose(ILLEGAL_ADDRESS, "the device is lost, as FAKE_CUDA_LOST_AFTER says");
      return run_kernel(n);
    }
    case COPY: return run_copy(n);
    case SET: {
      void* to = real(n->to, n->bytes);
      if (!to) return lose(ILLEGAL_ADDRESS, "memory to set that is no longer there");
      memset(to, n->value, n->bytes);
      return SUCCESS;
    }
    case WAIT: return run(n->other, n->upto);
    case GRAPH:
      for (size_t i = 0; i < n->graph->nodes.size; i++)
        if (Error e = perform(n->graph->nodes.items[i], true)) return e;
      return SUCCESS;
  }
  return INVALID_VALUE;
}

// The queue's work up to number ``upto``.
Error run(Queue* q, size_t upto) {
  while (q->done < upto) {
    if (sticky()) return sticky();
    Node* n = q->nodes.items[q->done];
    q->nodes.items[q->done++] = nullptr;
    Error error = perform(n, false);
    drop(n);
    if (error) return error;
  }
  return sticky();
}

bool under_way(const Queue* q, const Exec* exec) {
  for (size_t i = q->done; i < q->nodes.size; i++)
    if (q->nodes.items[i]->kind == GRAPH && q->nodes.items[i]->graph == exec) return true;
  return false;
}

Error enqueue(Stream* s, Node* n) {
  if (sticky()) return drop(n), sticky();
  if (s->capture) {
    if (s->invalid) return drop(n), CAPTURE_INVALIDATED;
    s->capture->nodes.add(n);
    return SUCCESS;
  }
  s->queue->nodes.add(n);
  return settings().eager ? run(s->queue, s->queue->nodes.size) : SUCCESS;
}

Error invalidate(Stream* s) {
  s->invalid = true;
  return CAPTURE_UNSUPPORTED;
}

}  // namespace

Error unsafe_in_capture() {
  Error error = sticky();
  for (size_t i = 0; i < capturing.size; i++)
    if (capturing.items[i]->mode != RELAXED) error = invalidate(capturing.items[i]);
  return error;
}

Error everything() {
  Error error = run(&legacy, legacy.nodes.size);
  for (size_t i = 0; i < queues.size && !error; i++) error = run(queues.items[i], queues.items[i]->nodes.size);
  return error;
}

Error create_stream(Stream** out, bool blocking) {
  if (sticky()) return sticky();
  Stream* s = (Stream*)calloc(1, sizeof(Stream));
  s->queue = blocking ? &legacy : (Queue*)calloc(1, sizeof(Queue));
  if (!blocking) queues.add(s->queue);
  *out = s;
  return SUCCESS;
}

Error destroy_stream(Stream* handle) {
  Stream* s = of(handle);
  if (s->capture) return invalidate(s);
  return run(s->queue, s->queue->nodes.size);  // it stays: an event may name it
}

Error synchronize(Stream* handle) {
  Stream* s = of(handle);
  counters().syncs++;
  if (s->capture) return invalidate(s);
  return run(s->queue, s->queue->nodes.size);
}

Error launch(Function* f, const cuda_on_cpu::Launch& l, Stream* handle, void** parameters) {
  const cuda_on_cpu::Kernel& k = *f->kernel;
  const char* why = cuda_on_cpu_refused(&k, &l);
  if (!why && l.dynamic > f->most_dynamic) why = "more dynamic shared memory than was asked for";
  if (why) {
    fprintf(stderr, "fake CUDA device: %s: %s\n", k.name, why);
    return INVALID_VALUE;
  }
  Node* n = make(KERNEL);
  n->kernel = &k;
  n->launch = l;
  n->launch.order = settings().order;
  n->values = (unsigned char*)calloc(1, bytes_of(k) + 1);
  unsigned char* at = n->values;
  for (unsigned i = 0; i < k.parameters; at += (k.sizes[i++] + 7) / 8 * 8) memcpy(at, parameters[i], k.sizes[i]);
  return enqueue(of(handle), n);
}

Error copy(void* to, const void* from, size_t bytes, int kind, Stream* handle) {
  if (sticky()) return sticky();
  if (kind == 4) kind = (on_device(from) ? 2 : 0) + (on_device(to) ? 1 : 0);  // by the addresses
  bool to_device = kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE;
  bool from_device = kind == DEVICE_TO_HOST || kind == DEVICE_TO_DEVICE;
  if (kind < 0 || kind > 3 || on_device(to) != to_device || on_device(from) != from_device) {
    if (bytes) return INVALID_VALUE;
    return SUCCESS;
  }
  if ((to_device && !real(to, bytes)) || (from_device && !real(from, bytes))) return INVALID_VALUE;
  Stream* s = of(handle);
  Node* n = make(COPY);
  n->to = to;
  n->from = from;
  n->bytes = bytes;
  n->value = kind;
  if (!from_device && !pinned(from) && !s->capture) {  // pageable: it is read before the call returns
    n->values = (unsigned char*)malloc(bytes + 1);
    memcpy(n->values, from, bytes);
  }
  if (s->capture) return enqueue(s, n);
  if (from_device && !to_device) {  // pageable or not: nobody may look before somebody has waited
    memset(to, POISON, bytes);
    counters().to_host++;
    counters().pageable += !pinned(to);
  } else if (to_device && !from_device) {
    counters().to_device++;
    counters().pageable += !pinned(from);
  }
  return enqueue(s, n);
}

Error set(void* to, int value, size_t bytes, Stream* handle) {
  if (!real(to, bytes)) return bytes ? INVALID_VALUE : SUCCESS;
  Node* n = make(SET);
  n->to = to;
  n->value = value;
  n->bytes = bytes;
  return enqueue(of(handle), n);
}

Error create_event(Event** out, bool timed) {
  *out = (Event*)calloc(1, sizeof(Event));
  (*out)->timed = timed;
  return sticky();
}

Error destroy_event(Event* e) {
  free(e);
  return sticky();
}

Error record(Event* e, Stream* handle) {
  Stream* s = of(handle);
  if (s->capture) return invalidate(s);  // a capture of several streams is not needed here
  e->queue = s->queue;
  e->upto = s->queue->nodes.size;
  return sticky();
}

Error between(Event* from, Event* to, size_t* out) {
  if (!from->timed || !to->timed || !from->queue || !to->queue) return INVALID_HANDLE;
  *out = from->queue == to->queue && to->upto > from->upto ? to->upto - from->upto : 0;
  return sticky();
}

Error wait_event(Stream* handle, Event* e) {
  if (!e->queue) return sticky();
  Node* n = make(WAIT);
  n->other = e->queue;
  n->upto = e->upto;
  return enqueue(of(handle), n);
}

Error synchronize(Event* e) {
  counters().syncs++;
  return e->queue ? run(e->queue, e->upto) : sticky();
}

Error begin_capture(Stream* handle, int mode) {
  Stream* s = of(handle);
  if (sticky()) return sticky();
  if (s == &null_stream || s->capture) return CAPTURE_UNSUPPORTED;
  s->capture = (Graph*)calloc(1, sizeof(Graph));
  s->mode = mode;
  s->invalid = false;
  capturing.add(s);
  return SUCCESS;
}

Error end_capture(Stream* handle, Graph** out) {
  Stream* s = of(handle);
  *out = nullptr;
  if (!s->capture) return ILLEGAL_STATE;
  Graph* graph = s->capture;
  s->capture = nullptr;
  capturing.remove(s);
  if (sticky() || s->invalid) {
    destroy(graph);
    return sticky() ? sticky() : CAPTURE_INVALIDATED;
  }
  *out = graph;
  return SUCCESS;
}

Error instantiate(Graph* graph, Exec** out) {
  Exec* exec = (Exec*)calloc(1, sizeof(Exec));
  for (size_t i = 0; i < graph->nodes.size; i++) exec->nodes.add(clone(graph->nodes.items[i]));
  counters().graphs++;
  counters().nodes += graph->nodes.size;
  *out = exec;
  return sticky();
}

Error launch(Exec* exec, Stream* handle) {
  Node* n = make(GRAPH);
  n->graph = exec;
  counters().graph_launches++;
  return enqueue(of(handle), n);
}

Error destroy(Graph* graph) {
  for (size_t i = 0; i < graph->nodes.size; i++) drop(graph->nodes.items[i]);
  free(graph->nodes.items);
  free(graph);
  return sticky();
}

Error destroy(Exec* exec) {
  bool waiting = under_way(&legacy, exec);
  for (size_t i = 0; i < queues.size; i++) waiting |= under_way(queues.items[i], exec);
  if (waiting) return lose(ILLEGAL_ADDRESS, "a graph is destroyed of which a launch is under way");
  return destroy((Graph*)exec);
}

size_t nodes_of(Graph* graph) { return graph->nodes.size; }

}  // namespace fake
