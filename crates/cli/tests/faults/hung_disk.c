/* Loaded into a server with LD_PRELOAD: syncs hang while the file of HUNG_WHILE exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int hang_then_sync(const char *name, int fd) {
    const char *file = getenv("HUNG_WHILE");
    while (file != NULL && access(file, F_OK) == 0) {
        usleep(10 * 1000);
    }
    int (*sync_file)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return sync_file == NULL ? -1 : sync_file(fd);
}

int fsync(int fd) { return hang_then_sync("fsync", fd); }

int fdatasync(int fd) { return hang_then_sync("fdatasync", fd); }
