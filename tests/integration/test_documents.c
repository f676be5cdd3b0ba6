/* The documents agree with the programs: options, exit statuses, opcodes of the store, functions of
 * the library, variables, paths. tests/run.sh counts every test program. */
#include "tests/lib/test.h"

#include <ctype.h>
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "core/mem.h"
#include "launcher/options/options.h"
#include "rendezvous/store/store_proto.h"
#include "tests/lib/proc.h"

/* A document as plain text: in manual pages "Fl \-name" becomes --name. */
static char *read_document(const char *path)
{
    char *text = read_file(path), *to = text;
    for (const char *p = text; *p;) {
        if (strncmp(p, "Fl \\-", 5) == 0) {
            *to++ = '-';
            *to++ = '-';
            p += 5;
        } else if (p[0] == '\\' && p[1] == '-') {
            *to++ = '-';
            p += 2;
        } else {
            *to++ = *p++;
        }
    }
    *to = '\0';
    return text;
}

/* Calls fn for README.md and every manual page. */
static void each_document(void (*fn)(const char *path, const char *text))
{
    glob_t g;
    ck_assert_int_eq(glob("man/*.[1-9]", 0, NULL, &g), 0);
    ck_assert_uint_ge(g.gl_pathc, 5);
    for (size_t i = 0; i <= g.gl_pathc; i++) {
        const char *path = i < g.gl_pathc ? g.gl_pathv[i] : "README.md";
        char *text = read_document(path);
        fn(path, text);
        free(text);
    }
    globfree(&g);
}

/* -------------------------------------------------------------------------------------- options */

static char *g_others; /* the help texts of the programs besides dlaunch */

/* Options of programs that are not part of dlaunch. */
static const char *const foreign[] = {
    "--nodes", "--ntasks-per-node", "--no-kill", "--signal",  "--cflags", "--libs", "--local-rank",
    "--lr",    "--bind-to",         "--map-by",  "--rank-by", "--mca",    NULL};

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '_';
}

static bool is_word_of(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = text; (p = strstr(p, word)); p += n) {
        if (!is_name(p[n]) && (p == text || !is_name(p[-1])))
            return true;
    }
    return false;
}

static bool is_option(const char *word)
{
    for (const char *const *f = foreign; *f; f++) {
        if (strcmp(*f, word) == 0)
            return true;
    }
    return opt_find(word + 2, strlen(word + 2)) != OPT_COUNT || is_word_of(g_others, word);
}

static void check_options(const char *path, const char *text)
{
    for (const char *p = text; (p = strstr(p, "--"));) {
        char word[64];
        size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
        if (isalpha((unsigned char)p[2]) && n < sizeof(word) &&
            (p == text || strchr(" \n`'\"([", p[-1]))) {
            snprintf(word, sizeof(word), "%.*s", (int)n, p);
            ck_assert_msg(is_option(word), "%s: there is no option %s", path, word);
        }
        p += n;
    }
}

START_TEST(options_exist)
{
    struct proc p, q, tool;
    proc_run(&p, ARGV(build_path("dlaunchctl"), "--help"), NULL, 20);
    proc_run(&q, ARGV(build_path("examples/train"), "--help"), NULL, 20);
    proc_run(&tool, ARGV(build_path("dlcoll_perf"), "--help"), NULL, 20);
    g_others = test_text("%s%s%s", p.out, q.out, tool.out);
    proc_fini(&p);
    proc_fini(&q);
    proc_fini(&tool);
    ck_assert(is_option("--max-restarts") && is_option("--json") && is_option("--crash-rank"));
    ck_assert(!is_option("--crash") && !is_option("--bananas"));
    each_document(check_options);
}
END_TEST

/* OPTIONS of dlaunch.1 is generated from launcher/options/options.def. */
START_TEST(options_of_the_manual_are_generated)
{
    static const char begin[] = ".\\\" OPTIONS begin\n", end[] = ".\\\" OPTIONS end\n";
    struct proc p;
    char *page = read_file("man/dlaunch.1"), *from = strstr(page, begin), *to = strstr(page, end);
    ck_assert(from && to && from < to);
    *to = '\0';
    proc_run(&p, ARGV(build_path("dlaunch"), "--print_options", "mdoc"), NULL, 20);
    ck_assert_msg(
        strcmp(from + strlen(begin), p.out) == 0,
        "OPTIONS of man/dlaunch.1 differ from launcher/options/options.def: type 'make generated'");
    proc_fini(&p);
    free(page);
}
END_TEST

/* ----------------------------------------------------------------- statuses, opcodes, functions */

/* Each line of "Exit status:" in --help is in dlaunch(1). */
START_TEST(exit_statuses_are_documented)
{
    struct proc p;
    char *man = read_document("man/dlaunch.1"), *save;
    int n = 0;
    proc_run(&p, ARGV(build_path("dlaunch"), "--help"), NULL, 20);
    char *rows = strstr(p.out, "\nExit status:\n");
    ck_assert_ptr_nonnull(rows);
    for (char *row = strtok_r(rows + 14, "\n", &save); row && row[0] == ' ';
         row = strtok_r(NULL, "\n", &save), n++) {
        char status[16];
        ck_assert_int_eq(sscanf(row, "%15s", status), 1);
        const char *meaning = strstr(row, status) + strlen(status);
        meaning += strspn(meaning, " ");
        ck_assert_msg(strstr(man, test_text(".It %s\n%s\n", status, meaning)) != NULL,
                      "man/dlaunch.1: %s %s", status, meaning);
    }
    ck_assert_int_ge(n, 9);
    proc_fini(&p);
    free(man);
}
END_TEST

static const char *opcode(enum store_dialect d, enum store_cmd cmd)
{
    int op = store_cmd_opcode(d, cmd);
    return op < 0 ? "-" : test_text("%d", op);
}

START_TEST(store_commands_are_documented)
{
    char *page = read_file("man/dlaunch-protocol.7");
    for (int c = 0; c < STORE_CMDS; c++) {
        const char *row =
            test_text("\n%s\t%s\t%s\t%s\t", store_cmd_name(c), opcode(STORE_NEWEST, c),
                      opcode(STORE_21, c), opcode(STORE_113, c));
        ck_assert_msg(strstr(page, row) != NULL, "man/dlaunch-protocol.7 lacks%s", row);
    }
    free(page);
}
END_TEST

static char *g_functions; /* the pages of section 3 */
static char *g_pages;     /* all of them */

static void add_functions(const char *path, const char *text)
{
    if (strcmp(path + strlen(path) - 2, ".3") == 0)
        g_functions = test_text("%s%s", g_functions, text);
}

START_TEST(functions_of_the_library_are_documented)
{
    struct proc p;
    char *save, *lib = build_path("libdlcoll.so");
    int n = 0;
    g_functions = test_text("%s", "");
    each_document(add_functions);
    ck_assert_int_eq(proc_run(&p, ARGV("nm", "-D", "--defined-only", lib), NULL, 20), 0);
    for (char *l = strtok_r(p.out, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        char name[64];
        if (sscanf(l, "%*s T %63[a-z0-9_]", name) != 1 || strncmp(name, "dlcoll_", 7) != 0)
            continue;
        ck_assert_msg(is_word_of(g_functions, test_text("Fn %s", name)) ||
                          is_word_of(g_functions, test_text("Fo %s", name)),
                      "%s() is in no manual page (man/*.3)", name);
        ck_assert_msg(is_word_of(g_functions, test_text("Nm %s", name)),
                      "'man %s' finds no page: NAME of none has it (man/*.3)", name);
        n++;
    }
    ck_assert_int_ge(n, 10);
    proc_fini(&p);
}
END_TEST

static void add_page(const char *path, const char *text)
{
    if (strncmp(path, "man/", 4) == 0)
        g_pages = test_text("%s%s", g_pages, text);
}

START_TEST(variables_of_the_environment_are_documented)
{
    static const char grep[] = "grep -rhoE '\\<(getenv|is_set|env_[a-z]+)\\((envp, )?"
                               "\"[A-Z_0-9]+\"' agent collectives core launcher rendezvous "
                               "--include='*.c'";
    struct proc p;
    char *save, name[64];
    int n = 0;
    g_pages = test_text("%s", "");
    each_document(add_page);
    ck_assert_int_eq(proc_run(&p, ARGV("sh", "-c", (char *)grep), NULL, 20), 0);
    for (char *l = strtok_r(p.out, "\n", &save); l; l = strtok_r(NULL, "\n", &save), n++) {
        ck_assert_int_eq(sscanf(l, "%*[^\"]\"%63[^\"]", name), 1);
        ck_assert_msg(is_word_of(g_pages, name), "no manual page describes the variable %s", name);
    }
    ck_assert_int_ge(n, 40);
    proc_fini(&p);
}
END_TEST

START_TEST(pages_are_well_formed)
{
    struct proc p;
    int missing = proc_run(&p, ARGV("sh", "-c", "command -v mandoc"), NULL, 20);
    proc_fini(&p);
    if (missing) {
        test_skip("no mandoc to check the manual pages with");
        return;
    }
    int status = proc_run(&p, ARGV("sh", "-c", "mandoc -T lint -W warning man/*.[1-9]"), NULL, 20);
    ck_assert_msg(status == 0, "%s%s", p.out, p.err);
    proc_fini(&p);
}
END_TEST

/* ---------------------------------------------------------------------------------------- paths */

static void check_path(const char *document, const char *word)
{
    char *path = test_text("%s", word);
    if (strncmp(path, "build/", 6) == 0)
        path = build_path(path + 6);
    glob_t g;
    ck_assert_msg(glob(path, 0, NULL, &g) == 0, "%s: there is no %s", document, word);
    globfree(&g);
}

/* Checks the links without a scheme, and the `words` that begin with a folder of the repository.
 * Counts both. */
static void check_paths(const char *document, int *links, int *words)
{
    static const char *const folders[] = {"core/",        "rendezvous/", "agent/", "launcher/",
                                          "collectives/", "conf/",       "man/",   "examples/",
                                          "tests/",       "build/",      ".ci/",   "doc/"};
    char *text = read_file(document), word[256];
    const char *up = strncmp(document, "doc/", 4) == 0 ? "doc/" : "";
    for (const char *p = text; (p = strstr(p, "](")); p += 2) {
        if (sscanf(p + 2, "%255[^)# ]", word) != 1 || strstr(word, "://"))
            continue;
        check_path(document, test_text("%s%s", up, word));
        ++*links;
    }
    for (const char *p = text; (p = strchr(p, '`')); p++) {
        if (sscanf(p + 1, "%255[^` \n]", word) != 1 || strpbrk(word, "<$"))
            continue;
        for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
            if (strncmp(word, folders[i], strlen(folders[i])) == 0) {
                check_path(document, word);
                ++*words;
            }
        }
    }
    free(text);
}

START_TEST(paths_in_the_documents_exist)
{
    static const char *const documents[] = {"README.md",         "CONTRIBUTING.md",
                                            "CHANGELOG.md",      "doc/torchrun.md",
                                            "doc/benchmarks.md", "doc/troubleshooting.md"};
    int links = 0, words = 0;
    for (size_t i = 0; i < ARRAY_LEN(documents); i++)
        check_paths(documents[i], &links, &words);
    ck_assert_int_ge(links, 15);
    ck_assert_int_ge(words, 40);
}
END_TEST

/* REPORT of dlaunch(1) names the keys in the order of the file. */
START_TEST(keys_of_the_report_are_documented)
{
    char *text = read_document("man/dlaunch.1"), *json, key[64];
    struct proc p;
    int keys = 0;
    const char *file = tmppath("r.json");
    char *argv[] = {build_path("dlaunch"), "--report", (char *)file, "true", NULL};
    ck_assert_int_eq(proc_run(&p, argv, NULL, 20), 0);
    proc_fini(&p);
    char *section = strstr(text, "\n.Sh REPORT");
    ck_assert_ptr_nonnull(section);
    char *to = section, *line = strtok(section, "\n");
    for (; line && strcmp(line, ".Sh SCHEDULERS") != 0; line = strtok(NULL, "\n")) {
        size_t n = strlen(line);
        if (strncmp(line, ".It Li ", 7) != 0)
            continue; /* a key counts only as the head of an item */
        memmove(to, line + 6, n - 6);
        to += n - 6;
    }
    *to = '\0';
    json = read_file(file);
    for (const char *at = json; (at = strstr(at, "\n  \"")); at++, keys++) {
        ck_assert_int_eq(sscanf(at, "\n  \"%63[^\"]", key), 1);
        ck_assert_msg(is_word_of(section, key), "dlaunch(1) does not describe the key %s", key);
    }
    ck_assert_int_ge(keys, 20);
    free(json);
    free(text);
}
END_TEST

/* --------------------------------------------------------------------------------- tests/run.sh */

static char *program(const char *folder, const char *text)
{
    char *dir = tmppath(folder), *path = test_text("%s/t", dir);
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    write_file(path, test_text("#!/bin/sh\n%s\n", text));
    ck_assert_int_eq(chmod(path, 0700), 0);
    return path;
}

/* Two test programs in two folders have the same name. */
START_TEST(a_failure_is_not_lost)
{
    struct proc p;
    char *argv[] = {"tests/run.sh",
                    program("a", "echo '0%: Checks: 1, Failures: 1, Errors: 0'; exit 1"),
                    program("b", "echo '100%: Checks: 1, Failures: 0, Errors: 0'"), NULL};
    ck_assert_int_eq(proc_run(&p, argv, (char *[]){"JOBS=1", NULL}, 20), 1);
    ck_assert_msg(strstr(p.out, "\nFAILED a/t: exit status 1\n1 passed, 1 failed\n"), "%s", p.out);
    proc_fini(&p);
}
END_TEST

/* The end of a log names every failing test, once. */
START_TEST(failing_tests_are_named_at_the_end)
{
    struct proc p;
    char *argv[] = {
        "tests/run.sh",
        program("a", "echo '25%: Checks: 4, Failures: 2, Errors: 1'\n"
                     "echo 'dir/t.c:1:F:lines:short:0: it, was: wrong'\n"
                     "echo 'dir/t.c:1:F:lines:short:1: it, was: wrong'\n"
                     "echo 'dir/t.c:9:E:ends:late:0: (after this point) Test timeout expired'\n"
                     "exit 1"),
        program("b", "echo '100%: Checks: 1, Failures: 0, Errors: 0'"), program("c", "exit 3"),
        NULL};
    ck_assert_int_eq(proc_run(&p, argv, (char *[]){"JOBS=1", NULL}, 20), 1);
    const char *end = strstr(p.out, "\nFAILED ");
    ck_assert_msg(end, "%s", p.out);
    ck_assert_str_eq(end, "\nFAILED a/t: ends:late, lines:short\nFAILED c/t: exit status 3\n"
                          "2 passed, 4 failed\n");
    proc_fini(&p);
}
END_TEST

/* The source of all that composes texts of errors. */
static char *error_sources(void)
{
    char *a = read_file("collectives/base/error.c"), *b = read_file("collectives/comm/failure.c");
    char *both = xmalloc(strlen(a) + strlen(b) + 1), *to = both;
    for (const char *p = a; *p; p++)
        *to++ = *p;
    for (const char *p = b; *p; p++) { /* literals that lie on several lines become one */
        const char *next = p + 1;
        if (*p == '"')
            next += strspn(next, " \n");
        if (*p == '"' && *next == '"' && next > p + 1)
            p = next;
        else
            *to++ = *p;
    }
    *to = '\0';
    free(a);
    free(b);
    return both;
}

/* The names with that prefix that a linker's map lists. */
static size_t count_listed(const char *map, const char *prefix)
{
    size_t n = 0;
    for (const char *p = map; (p = strstr(p, test_text("        %s", prefix))); p += 8)
        n++;
    return n;
}

/* Both libraries export what their header declares, each function by its name and under a version.
 */
START_TEST(exported_symbols)
{
    static const struct {
        const char *header, *map, *api, *prefix, *library;
    } of[] = {{"collectives/dlcoll.h", "collectives/dlcoll.map", "\nDLCOLL_API ", "dlcoll_",
               "libdlcoll.so"},
              {"launcher/api/dlaunch.h", "launcher/api/dlaunch.map", "\nDLAUNCH_API ", "dlaunch_",
               "libdlaunch.so"}};
    char *header = read_file(of[_i].header), *map = read_file(of[_i].map);
    void *library = dlopen(build_path(of[_i].library), RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library, "%s", dlerror());
    size_t declared = 0;
    for (const char *p = header; (p = strstr(p, of[_i].api)); declared++) {
        char name[64];
        const char *at = strchr(p += strlen(of[_i].api), '('), *begin = at;
        while (isalnum((unsigned char)begin[-1]) || begin[-1] == '_')
            begin--;
        snprintf(name, sizeof(name), "%.*s", (int)(at - begin), begin);
        ck_assert_msg(strstr(map, test_text("        %s;\n", name)), "%s lacks %s", of[_i].map,
                      name);
        ck_assert_msg(dlsym(library, name), "%s lacks %s", of[_i].library, name);
    }
    ck_assert_uint_ge(declared, 7);
    ck_assert_uint_eq(count_listed(map, of[_i].prefix), declared);
    ck_assert_msg(!strstr(map, "_*;"), "%s exports what it does not name", of[_i].map);
    dlclose(library);
    free(header);
    free(map);
}
END_TEST

START_TEST(versions_are_numbers)
{
    int n = dlcoll_version_number();
    ck_assert_str_eq(dlcoll_version(),
                     test_text("%d.%d.%d", n / 1000000, n / 1000 % 1000, n % 1000));
    ck_assert_int_lt(DLCOLL_VERSION_NUMBER(1, 9, 30), DLCOLL_VERSION_NUMBER(1, 10, 2));
}
END_TEST

START_TEST(errors_of_libdlcoll)
{
    char *page = read_file("man/dlcoll_errors.3"), *header = read_file("collectives/dlcoll.h");
    char *source = error_sources();
    int codes = 0, lines = 0;
    for (const char *p = header; (p = strstr(p, "    DLCOLL_E")); p++) {
        char name[64];
        int code, n = sscanf(p, " %63[A-Z_] = %d", name, &code);
        if (n != 2 || code >= 0)
            continue;
        const char *text = dlcoll_strerror(code);
        const char *wanted = test_text(".It Dv %s\n.Dq %s .\n", name, text), *at;
        ck_assert_msg((at = strstr(page, wanted)), "dlcoll_errors.3 lacks %s", wanted);
        const char *cure = at + strlen(wanted);
        ck_assert_msg(*cure != '.', "%s has no remedy", name);
        codes++;
    }
    ck_assert_int_eq(codes, -DLCOLL_ECANCELED);
    for (const char *p = page; (p = strstr(p, "\n.It Li ")); lines++) {
        char text[128];
        ck_assert_int_eq(sscanf(p += 8, "%127[^\n]", text), 1);
        const char *plain =
            *text == '"' ? test_text("%.*s", (int)strlen(text) - 2, text + 1) : text;
        ck_assert_msg(strstr(source, plain), "no error says '%s'", plain);
    }
    ck_assert_int_ge(lines, 15);
    free(page);
    free(header);
    free(source);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("documents");
    TCase *tc = test_case(s, "documents", 60);
    tcase_add_test(tc, options_exist);
    tcase_add_test(tc, errors_of_libdlcoll);
    tcase_add_loop_test(tc, exported_symbols, 0, 2);
    tcase_add_test(tc, versions_are_numbers);
    tcase_add_test(tc, options_of_the_manual_are_generated);
    tcase_add_test(tc, exit_statuses_are_documented);
    tcase_add_test(tc, keys_of_the_report_are_documented);
    tcase_add_test(tc, store_commands_are_documented);
    tcase_add_test(tc, functions_of_the_library_are_documented);
    tcase_add_test(tc, variables_of_the_environment_are_documented);
    tcase_add_test(tc, pages_are_well_formed);
    tcase_add_test(tc, paths_in_the_documents_exist);
    tc = test_case(s, "run.sh", 30);
    tcase_add_test(tc, a_failure_is_not_lost);
    tcase_add_test(tc, failing_tests_are_named_at_the_end);
    return s;
}

TEST_MAIN(suite)
