/* use_dlcoll.cc: dlcoll.hpp as a program uses it; test_bindings compiles it and runs three ranks.
 */
#include <dlcoll.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#define NEED(fact)                                                          \
    do {                                                                    \
        if (!(fact)) {                                                      \
            std::fprintf(stderr, "line %d: not so: %s\n", __LINE__, #fact); \
            std::exit(1);                                                   \
        }                                                                   \
    } while (0)

struct half { /* a type of the program's own */
    std::uint16_t bits;
};
template <> struct dlcoll::dtype<half> : dlcoll::dtype_is<DLCOLL_F16> {
};

static_assert(dlcoll::dtype_v<const float> == DLCOLL_F32);
static_assert(dlcoll::dtype_v<long> == DLCOLL_I64);
static_assert(dlcoll::dtype_v<char> == (std::is_signed_v<char> ? DLCOLL_I8 : DLCOLL_U8));
static_assert(dlcoll::dtype_v<unsigned short> == DLCOLL_U16);
static_assert(dlcoll::dtype_v<bool> == DLCOLL_BOOL);
static_assert(!std::is_copy_constructible_v<dlcoll::comm>);
static_assert(std::is_nothrow_move_constructible_v<dlcoll::comm>);

template <class F> static dlcoll_error failure(F f)
{
    try {
        f();
    } catch (const dlcoll::error &e) {
        NEED(std::strcmp(e.what(), e.detail().text) == 0);
        return e.detail();
    }
    NEED(!"it has failed");
    std::abort();
}

template <class F> static bool refused(F f)
{
    try {
        f();
    } catch (const std::invalid_argument &) {
        return true;
    }
    return false;
}

static void reductions(dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank();
    std::vector<float> x(100, static_cast<float>(me + 1)), y(100);
    world.all_reduce(x, y);
    NEED(x[0] == static_cast<float>(me + 1) && y[99] == static_cast<float>(n * (n + 1) / 2));
    world.all_reduce(x, DLCOLL_MAX);
    NEED(x[50] == static_cast<float>(n));

    double array[3] = {1, 2, 3};
    world.all_reduce(array, dlcoll::reduction::premul_sum(me ? 0.0 : 2.0));
    NEED(array[2] == 6);
    const auto least = dlcoll::reduction::of<int>([](int a, int b) { return a < b ? a : b; });
    std::array<int, 2> z = {me, -me};
    world.all_reduce(z, least);
    NEED(z[0] == 0 && z[1] == -(n - 1));

    std::vector<half> h(4, half{0x3c00});
    world.all_reduce(h);
    NEED(h[3].bits == (n == 3 ? 0x4200 : h[3].bits));
    world.reduce(x, y, n - 1, DLCOLL_AVG);
    NEED(me != n - 1 || y[7] == static_cast<float>(n));
    std::array<float, 2> few{};
    NEED(refused([&] { world.all_reduce(x, few); }));
}

static void data(dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank();
    std::vector<int> mine(2, me), all(2 * static_cast<std::size_t>(n)), part(2);
    world.all_gather(mine, all);
    NEED(all.back() == n - 1 && all[0] == 0);
    world.reduce_scatter(all, part);
    NEED(part[0] == me * n && part[1] == me * n);
    std::vector<int> out(static_cast<std::size_t>(n), me), in(out.size());
    world.all_to_all(out, in);
    NEED(in[static_cast<std::size_t>(n) - 1] == n - 1);
    world.gather(mine, all, 0);
    world.scatter(all, part, 0);
    NEED(part[1] == me);
    NEED(refused([&] { world.all_gather(mine, part); }));

    int token = me;
    world.broadcast(dlcoll::span(&token, 1), 1);
    NEED(token == 1);
    auto there = world.async().send(mine, (me + 1) % n);
    std::vector<int> from(2, -1);
    world.recv(from, (me + n - 1) % n);
    there.wait();
    NEED(from[0] == (me + n - 1) % n);

    auto shared = world.buffer<float>(1000);
    std::iota(shared.begin(), shared.end(), 0.0f);
    world.all_reduce(shared);
    NEED(shared[999] == 999.0f * static_cast<float>(n));
}

static void handles(dlcoll::comm &world)
{
    std::vector<std::int64_t> x(1000, 1);
    auto a = world.async().all_reduce(x);
    while (!a.wait_for(std::chrono::milliseconds(10)))
        ;
    NEED(a.test() && x[0] == world.size());
    world.with(std::chrono::seconds(30)).barrier();

    const std::vector<std::int64_t> more(1, 2); /* the reduction's own, on the heap */
    auto b = world.async().all_reduce(
        x, dlcoll::reduction::of<std::int64_t>(
               [more](std::int64_t p, std::int64_t q) { return p + q + more[0]; }));
    b.wait();
    NEED(x[999] == world.size() * world.size() + 2 * (world.size() - 1));
    auto c = world.async().all_reduce(x, dlcoll::reduction::premul_sum(std::int64_t{0}));
    c.wait();
    NEED(x[0] == 0);
}

/* There is no memory to share. */
static void alone(dlcoll::comm &world)
{
    dlcoll::comm self = world.split(world.rank());
    auto own = self.buffer<float>(1000);
    own[999] += 1.0f;
    self.all_reduce(own);
    NEED(own[0] == 0.0f && own[999] == 1.0f);
    try {
        auto much = world.buffer<float>(SIZE_MAX / 4 + 2);
        NEED(!"there is so much");
    } catch (const std::bad_alloc &) {
    }
}

static void groups(dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank();
    dlcoll::comm half = world.split(me % 2);
    NEED(half.size() == (n + 1 - me % 2) / 2 && half.rank() == me / 2);
    int one[1] = {1};
    half.all_reduce(one);
    NEED(one[0] == half.size());
    dlcoll::comm first = world.new_group({0});
    NEED(static_cast<bool>(first) == (me == 0));
    dlcoll::comm moved = std::move(half);
    NEED(!half && moved.size() > 0);
    const auto texts = world.exchange(std::string(static_cast<std::size_t>(me), 'x'));
    NEED(texts.size() == static_cast<std::size_t>(n) && texts.back().size() == texts.size() - 1);
    auto store = world.store();
    if (me == 0)
        store.set("greeting", "hello");
    NEED(store.get("greeting") == "hello");
    NEED(!world.describe().empty());
}

static void errors(dlcoll::comm &world)
{
    std::vector<float> x(3);
    const dlcoll_error e = failure([&] { world.all_reduce(x, DLCOLL_BAND); });
    NEED(e.code == DLCOLL_ENOSUP && std::strstr(e.text, "band"));
    NEED(failure([] { dlcoll::check(DLCOLL_ENOMEM); }).text[0]);
    NEED(failure([&] { world.broadcast(x, 99); }).code == DLCOLL_EINVAL);
}

int main()
{
    dlcoll::comm world;
    reductions(world);
    data(world);
    handles(world);
    groups(world);
    alone(world);
    errors(world);
    std::printf("rank %d of %d is content\n", world.rank(), world.size());
}
