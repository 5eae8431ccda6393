#pragma once

#include <stdlib.h>
#include <string.h>

#include "device.h"

namespace fake {

template <class T>
void List<T>::add(const T& item) {
  if (size == room) items = (T*)realloc((void*)items, (room = room ? 2 * room : 8) * sizeof(T));
  items[size++] = item;
}

template <class T>
void List<T>::remove(const T& item) {
  for (size_t i = 0; i < size; i++)
    if (items[i] == item) {
      memmove(items + i, items + i + 1, (--size - i) * sizeof(T));
      return;
    }
}

}  // namespace fake
