/* Any bytes as a dump of PyTorch's flight recorder: read or refused, always bounded. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "agent/inspect/pickle.h"
#include "agent/inspect/torch_recorder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sample_op op;
    struct pickle *p = pickle_read(data, size);
    bool good = torch_recorder_parse(data, size, 1, &op);
    assert(p || !good);
    assert(!good || (op.number > 0 && op.reported));
    assert(memchr(op.text, '\0', sizeof(op.text)));
    assert(!p || pickle_root(p));
    pickle_free(p);
    return 0;
}
