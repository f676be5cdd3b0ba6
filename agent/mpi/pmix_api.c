#include "agent/mpi/pmix_api.h"

#include <dlfcn.h>
#include <errno.h>

int pmix_api_load(struct pmix_api *api, struct err *e)
{
    void *lib = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(e, -ENOENT,
                       "the program's MPI needs PMIx, and its library is not here (%s): install "
                       "libpmix2, or make LD_LIBRARY_PATH lead to libpmix.so.2",
                       dlerror());
#define PMIX_LOAD(type, name, params)         \
    *(void **)&api->name = dlsym(lib, #name); \
    if (!api->name)                           \
        return err_set(e, -ENOENT, "libpmix.so.2 has no function " #name ": it is another version");
    PMIX_FUNCTIONS(PMIX_LOAD)
#undef PMIX_LOAD
    return 0;
}
