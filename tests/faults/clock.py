"""A wall clock that a test can step while the processes run: a small library loaded before the C library.

It adds the seconds in a shared file to what the system's wall clock says; the monotonic clock is left alone,
as a real step leaves it. It has to be compiled, so without a C compiler there is no such clock.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

VARIABLE = "FAULTS_CLOCK"
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *offset;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAULTS_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file >= 0) {
    void *page = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset = page;
  }
}

int clock_gettime(clockid_t id, struct timespec *now) {
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, now);
  if (!failed && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset;
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  int failed = clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *place) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (place) *place = exact.tv_sec;
  return exact.tv_sec;
}
"""


class Clock:
    """The clock of all processes that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._offset = folder / "offset"
        self._library = folder / "clock.so"
        self.step(0)

    def build(self) -> bool:
        """Compile the library; False where there is no compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            return False
        source = self._library.with_suffix(".c")
        source.write_text(SOURCE)
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(self._library), str(source), "-ldl"]
        return subprocess.run(command, check=False).returncode == 0

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process under this clock."""
        return {"LD_PRELOAD": str(self._library), VARIABLE: str(self._offset)}

    def step(self, seconds: int) -> None:
        """Show the wall clock's time plus so many seconds from now on."""
        # In place: the processes have mapped this very file.
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))
