/* INI files: any bytes. What is taken from them has the form that its option asks for, and every
 * complaint is one line. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/options/config_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_error(void *arg, const char *line)
{
    ++*(int *)arg;
    if (strncmp(line, "fuzz.ini", 8) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct options o;
    int errors = 0;
    options_init(&o, "dlaunch");
    if (config_text_read(&o, "fuzz.ini", (const char *)data, size, on_error, &errors) != errors)
        abort();
    for (int i = 0; i < OPT_COUNT; i++) {
        if (opt_given(&o, i) &&
            (o.value[i].from != FROM_FILE || opt_check(i, opt_text(&o, i), NULL)))
            abort();
    }
    for (size_t i = 0; i < o.nenv; i++) {
        if (!strchr(o.env[i], '=') || !o.env_source[i])
            abort();
    }
    if (o.nenv && o.env[o.nenv])
        abort();
    if (o.command && !o.command[0])
        abort();
    options_fini(&o);
    return 0;
}
