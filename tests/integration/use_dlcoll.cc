/* use_dlcoll.cc: dlcoll.hpp as a program uses it; test_bindings compiles it and runs three ranks.
 */
#include <dlcoll.hpp>

#include <algorithm>
#include <array>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include <unistd.h>

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
    std::vector<int> matrix(12, me), column(4 * static_cast<std::size_t>(n));
    world.all_gather(dlcoll::strided(matrix, 4, 1, 3, 1), column);
    NEED(column.back() == n - 1);
    world.all_reduce(dlcoll::strided(matrix, 4, 1, 3), dlcoll::strided(matrix, 4, 1, 3, 2));
    NEED(matrix[11] == n * (n - 1) / 2 && matrix[10] == me);
    const dlcoll::graph ring({(me + n - 1) % n}, {(me + 1) % n});
    std::array<int, 2> mine = {me, -me}, theirs{};
    world.neighbor_all_gather(mine, theirs, ring);
    NEED(theirs[0] == (me + n - 1) % n);
    world.async().neighbor_all_to_all(theirs, mine, ring).wait();
    NEED(mine[1] == -((me + 2 * n - 2) % n));
    std::vector<std::size_t> each(static_cast<std::size_t>(n), 1);
    std::vector<dlcoll_dtype> types(each.size(), DLCOLL_I32);
    world.all_to_all_w(column.data(), each, {}, types, column.data(), each, {}, types);
    auto later = world.split_async(me % 2);
    const std::string word = "rank " + std::to_string(me);
    auto words = world.exchange_async(word);
    {
        dlcoll::comm half = later.get(), same = world.dup();
        NEED(half.size() == (n + 1 - me % 2) / 2 && same.size() == n);
        dlcoll::comm twin = same.dup_async().get();
        NEED(twin.rank() == me && words.get()[0] == "rank 0");
        twin.finalize_async().wait();
    }
    std::vector<int> again(3, 1);
    auto doubled = world.persistent().all_reduce(again);
    for (int k = 0; k < 3; k++) {
        doubled.start();
        doubled.wait();
    }
    NEED(again[2] == n * n * n);
    std::vector<int> ones(70, 1), upto(70), before(70, -1);
    world.scan(ones, upto);
    world.exscan(ones, before);
    NEED(upto[69] == me + 1 && before[69] == (me ? me : -1));
    std::vector<std::complex<double>> turn(5, {0, 1});
    world.all_reduce(turn, dlcoll::reduction::of<std::complex<double>>(
                               [](const auto &a, const auto &b) { return a * b; }));
    NEED(turn[4] == std::pow(std::complex<double>(0, 1), n) || n > 3);
    dlcoll::located<double, std::int32_t> far[] = {{me % 2 * 2.5, me}};
    world.all_reduce(far, DLCOLL_MAXLOC);
    NEED(far[0].value == (n > 1 ? 2.5 : 0) && far[0].index == (n > 1));
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

/* Rank r has r + 1 elements of each part. */
static void uneven(dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank();
    const auto size = static_cast<std::size_t>(n), mine = static_cast<std::size_t>(me) + 1;
    std::vector<std::size_t> counts(size), displs(size), same(size, mine);
    std::iota(counts.begin(), counts.end(), std::size_t{1});
    std::size_t total = 0;
    for (std::size_t r = 0; r < size; r++) { /* with one element between the parts */
        displs[r] = total + r;
        total += counts[r];
    }
    std::vector<int> x(mine, me), all(total, -1), apart(total + size, -1), back(mine, -1);
    world.all_gather_v(x, all, counts);
    NEED(all[0] == 0 && all[1] == 1 && all[2] == 1 && all.back() == n - 1);
    world.all_gather_v(x, apart, counts, displs);
    NEED(apart[0] == 0 && apart[1] == -1 && apart[2] == 1 && apart[3] == 1 && apart[4] == -1);

    std::fill(all.begin(), all.end(), -1);
    world.gather_v(x, all, me == 1 ? dlcoll::counts(counts) : dlcoll::counts(), 1);
    NEED(me == 1 ? all[0] == 0 && all.back() == n - 1 : all[0] == -1);
    std::fill(apart.begin(), apart.end(), -1);
    world.async().gather_v(x, apart, counts, 0, displs).wait();
    NEED(me || (apart[1] == -1 && apart[displs[size - 1]] == n - 1));
    world.scatter_v(all, back, counts, 1);
    NEED(back == x);
    std::fill(back.begin(), back.end(), -1);
    world.scatter_v(apart, back, counts, 0, displs);
    NEED(back == x);

    std::vector<double> terms(total), sums(mine);
    std::iota(terms.begin(), terms.end(), 0.0);
    world.reduce_scatter_v(terms, sums, counts);
    NEED(sums[0] == n * me * (me + 1) / 2 && sums.back() == sums[0] + n * me);
    world.reduce_scatter_v(terms, sums, counts, DLCOLL_MAX);
    NEED(sums.back() == (me + 1) * (me + 2) / 2 - 1);

    /* To rank r r + 1 elements: from each as many as this rank has. */
    std::vector<int> out(total, me), in(size * mine, -1);
    world.all_to_all_v(out, counts, in, same);
    for (std::size_t i = 0; i < in.size(); i++)
        NEED(in[i] == static_cast<int>(i / mine));
    std::vector<int> wide(total + size, me);
    std::vector<std::size_t> reversed(size);
    for (std::size_t r = 0; r < size; r++)
        reversed[r] = (size - 1 - r) * mine;
    world.all_to_all_v(wide, counts, in, same, displs, reversed);
    NEED(in[0] == n - 1 && in.back() == 0);

    NEED(refused([&] { world.all_gather_v(x, back, counts); }) || n == 1);
    NEED(refused([&] { world.all_gather_v(x, all, dlcoll::counts()); }));
    NEED(refused([&] { world.all_gather_v(x, all, counts, displs); }));
    NEED(refused([&] { world.all_to_all_v(out, counts, back, counts); }) || n == 1);
}

static void lists(dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank();
    std::vector<float> a(3, 1.0f), b(5, static_cast<float>(me)), c(5);
    std::vector<dlcoll::in_out<float>> list{a, {b, c}};
    world.all_reduce_coalesced(list);
    NEED(a[2] == static_cast<float>(n) && b[4] == static_cast<float>(me));
    NEED(c[4] == static_cast<float>(n * (n - 1) / 2));
    int d[2] = {me, -me};
    const std::array one{dlcoll::in_out(d)};
    world.async().all_reduce_coalesced(one, DLCOLL_MAX).wait();
    NEED(d[0] == n - 1 && d[1] == 0);
    NEED(refused([&] { dlcoll::in_out<float> two(a, b); }));

    std::vector<int> none;
    std::vector<short> left(4, static_cast<short>(me)), right(4, -1);
    int from_left = -1, token = me * 10;
    const int next = (me + 1) % n, last = (me + n - 1) % n;
    world.batch(std::array{dlcoll::p2p_recv(right, last), dlcoll::p2p_send(left, next),
                           dlcoll::p2p_recv(dlcoll::span(&from_left, 1), last, 7),
                           dlcoll::p2p_send(dlcoll::span(&token, 1), next, 7),
                           dlcoll::p2p_send(none, next, 8), dlcoll::p2p_recv(none, last, 8)});
    NEED(right[3] == last && from_left == last * 10);

    /* Receives from any rank. */
    if (me) {
        world.send(dlcoll::span(&token, 1), 0);
    } else {
        int sum = 0;
        for (int i = 1; i < n; i++) {
            int x = -1, peer = world.recv_any(dlcoll::span(&x, 1));
            NEED(x == peer * 10);
            sum += peer;
        }
        NEED(sum == n * (n - 1) / 2);
    }
}

/* Messages of unknown length, from anybody. */
static void unknown_lengths(dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank(), next = (me + 1) % n, last = (me + n - 1) % n;
    const auto any = world.tagged(DLCOLL_ANY_TAG);
    std::vector<int> x(static_cast<std::size_t>(me + 2), me), y(20, -1);
    NEED(!any.iprobe(DLCOLL_ANY_SOURCE) && !any.improbe(last));
    world.barrier();
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    opts.tag = 7;
    opts.flags = DLCOLL_SYNCHRONOUS;
    dlcoll::work sent = world.async(opts).send(x, next);
    NEED(any.probe(DLCOLL_ANY_SOURCE).count == static_cast<std::size_t>(last + 2));
    dlcoll_message m = any.recv_upto(y, DLCOLL_ANY_SOURCE);
    NEED(m.source == last && m.tag == 7 && m.count == static_cast<std::size_t>(last + 2));
    NEED(y[m.count - 1] == last && y[m.count] == -1);
    sent.wait();

    sent = world.async().send(x, next);
    m = any.mprobe(last);
    NEED(m.matched && !any.improbe(DLCOLL_ANY_SOURCE));
    world.mrecv(y, m);
    NEED(!m.matched && m.tag == 0);
    sent.wait();
    world.barrier();

    dlcoll::work w = world.async().recv_upto(y, last, &m);
    NEED(w.cancel() && failure([&] { w.wait(); }).code == DLCOLL_ECANCELED && !w.cancel());
    world.barrier();
    w = world.async().recv_upto(y, last, &m);
    sent = world.async().send(x, next);
    w.wait();
    sent.wait();
    NEED(m.count == static_cast<std::size_t>(last + 2) && !w.cancel());
    if (n > 1 && me < n / 2 * 2) {
        if (me % 2)
            world.recv(dlcoll::span(y.data(), 1), me - 1);
        else
            world.synchronous().send(dlcoll::span(x.data(), 1), me + 1);
    }
}

/* The second of two receives completes first. */
static void many_handles(dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank(), next = (me + 1) % n, last = (me + n - 1) % n;
    int x = -1, y = -1, first = 1, second = 2;
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    std::vector<dlcoll::work> works(1);
    works.push_back(world.async().recv(dlcoll::span(&x, 1), last));
    opts.tag = 5;
    works.push_back(world.async(opts).recv(dlcoll::span(&y, 1), last));
    NEED(dlcoll::wait_any(works, std::chrono::milliseconds(1)) == works.size());
    NEED(!dlcoll::wait_all(works, std::chrono::milliseconds(1)));
    world.barrier();
    world.with(opts).send(dlcoll::span(&second, 1), next);
    NEED(dlcoll::wait_any(works) == 2 && y == 2);
    works[2] = {};
    world.barrier();
    world.send(dlcoll::span(&first, 1), next);
    NEED(dlcoll::wait_all(works) && x == 1 && dlcoll::wait_any(works) == 1);
    works.resize(1);
    NEED(failure([&] { dlcoll::wait_any(works); }).code == DLCOLL_EINVAL);
}

/* The last rank is late, and the others are told. */
static void missing(dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank();
    std::vector<int> absent(7, 7);
    world.monitored_barrier();
    world.monitored_barrier(&absent);
    NEED(absent.empty());
    if (me != n - 1) {
        const dlcoll_error e =
            failure([&] { world.with(std::chrono::milliseconds(100)).monitored_barrier(&absent); });
        NEED(e.code == DLCOLL_ETIMEDOUT && e.rank == n - 1);
        NEED(absent == std::vector<int>{n - 1});
    }
    world.barrier();
}

static void stores(dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank();
    const char *env = std::getenv("MASTER_ADDR");
    NEED(env);
    const std::string master = env;
    unsetenv("MASTER_ADDR"); /* the reason is told */
    NEED(std::strstr(failure([&] { world.store(); }).text, "MASTER_ADDR"));
    setenv("MASTER_ADDR", master.c_str(), 1);

    auto job = world.store();
    job.add("sum", me + 1);
    world.barrier();
    NEED(job.add("sum", 0) == n * (n + 1) / 2);
    if (me == 0) {
        NEED(job.compare_set("winner", "", "rank 0") == "rank 0");
        NEED(job.compare_set("winner", "nobody", "rank 1") == "rank 0");
        NEED(job.compare_set("winner", "rank 0", "rank 2") == "rank 2");
    }
    job.wait("winner", std::chrono::seconds(30));
    job.wait({"winner", "sum"});
    job.wait(std::vector<std::string>{"winner", "sum"}, std::chrono::seconds(30));
    NEED(failure([&] { job.wait({"nothing"}, std::chrono::milliseconds(10)); }).code ==
         DLCOLL_ETIMEDOUT);
    world.barrier();
    if (me == 0)
        NEED(job.erase("winner") && !job.erase("winner"));

    /* Another one, at an address. */
    const std::string url = "tcp://" + master + ":" + std::getenv("MASTER_PORT");
    dlcoll::store same(url.c_str(), false, std::chrono::seconds(30));
    NEED(same.add("sum", 0) == n * (n + 1) / 2);
    NEED(failure([] { dlcoll::store s("nowhere"); }).code == DLCOLL_EINVAL);
}

static void facts(dlcoll::comm &world)
{
    const auto [host, pid] = world.rank_host(world.rank());
    NEED(!host.empty() && pid == getpid());
    NEED(dlcoll::version() == std::string(dlcoll_version()));
    dlcoll::comm self = world.split(world.rank());
    NEED(self.world_rank(0) == world.rank() && world.local_rank() == world.rank() &&
         world.local_size() == world.size());
    NEED(failure([&] { self.world_rank(1); }).code == DLCOLL_EINVAL);
    NEED(world.node_count() == 1 && world.node_of(world.size() - 1) == 0);
    NEED(world.node_ranks(0) == std::vector<int>({0, 1, 2}) && self.node_ranks(0).size() == 1);
    NEED(failure([&] { world.node_of(3); }).code == DLCOLL_EINVAL);
    NEED(world.split_by(DLCOLL_DOMAIN_HOST).size() == world.size());
    NEED(world.domains(DLCOLL_DOMAIN_HOST) == std::vector<int>({0, 0, 0}));
    world.barrier();
    const auto last = world.recent();
    NEED(!last.empty() && std::strcmp(last[0].op, "barrier") == 0);
    NEED(world.recent(0, 1).size() == 1);
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

/* What an exception leaves behind. */
static void exceptions(dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank();
    try {
        std::vector<std::int32_t> x(1 << 18, 1), y(10);
        auto sum = world.async().all_reduce(x);
        auto never = world.async().recv(y, (me + 1) % n);
        throw std::runtime_error("something else");
    } catch (const std::runtime_error &e) {
        NEED(std::string(e.what()) == "something else");
    }
    std::vector<std::int32_t> again(1 << 18, 5);
    world.barrier();
    for (std::int32_t v : again)
        NEED(v == 5);

    dlcoll::comm group = world.dup();
    const auto add = [me](int a, int b) {
        if (me == 0)
            throw std::domain_error("too large");
        return a + b;
    };
    std::vector<int> x(4, me);
    bool failed = false;
    try {
        group.all_reduce(x, dlcoll::reduction::of<int>(add));
    } catch (const dlcoll::error &e) {
        failed = e.code() == DLCOLL_EABORTED && std::strstr(e.what(), "too large");
        NEED(failed && e.rank() == 0);
    }
    int all = failed;
    world.all_reduce(dlcoll::span(&all, 1));
    NEED(all == 0 || all == n);
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

/* One ends a group for all of them; what goes on is another one. */
static void ends(dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank();
    int x = 1;
    dlcoll::comm group = world.split(0);
    NEED(std::strstr(failure([&] { group.shrink(); }).text, "nothing has failed"));
    world.barrier();
    if (me == 0)
        group.abort("enough");
    const dlcoll_error e = failure([&] {
        for (;;)
            group.all_reduce(dlcoll::span(&x, 1));
    });
    NEED(me == 0 ? e.code == DLCOLL_ESTATE
                 : e.code == DLCOLL_EABORTED && std::strstr(e.text, "enough"));
    dlcoll::comm rest = group.shrink();
    x = 1;
    rest.all_reduce(dlcoll::span(&x, 1));
    NEED(rest.size() == n && rest.rank() == me && x == n);
}

/* Threads that send and receive while another one is in an operation. */
static void side_by_side(const dlcoll::comm &world)
{
    const int n = world.size(), me = world.rank(), from = (me + n - 1) % n;
    std::vector<std::thread> threads;
    for (int tag = 0; tag < 3; tag++) {
        threads.emplace_back([&world, from, me, n, tag] {
            dlcoll_opts opts = DLCOLL_OPTS_INIT;
            opts.tag = tag;
            for (int k = 0; k < 20; k++) {
                std::vector<int> x(100, me + k), y(100);
                auto sent = world.async(opts).send(x, (me + 1) % n);
                world.with(opts).recv(y, from);
                sent.wait();
                NEED(y[0] == from + k && y[99] == from + k);
            }
        });
    }
    for (int k = 0; k < 20; k++) {
        int x = 1;
        world.all_reduce(dlcoll::span(&x, 1));
        NEED(x == n);
    }
    for (std::thread &t : threads)
        t.join();
}

int main()
{
    dlcoll_init_opts opts = DLCOLL_INIT_OPTS_INIT;
    opts.flags = DLCOLL_THREAD_MULTIPLE;
    dlcoll::comm world(opts);
    side_by_side(world);
    reductions(world);
    data(world);
    uneven(world);
    lists(world);
    unknown_lengths(world);
    handles(world);
    exceptions(world);
    many_handles(world);
    missing(world);
    stores(world);
    groups(world);
    facts(world);
    alone(world);
    errors(world);
    ends(world);
    std::printf("rank %d of %d is content\n", world.rank(), world.size());
}
