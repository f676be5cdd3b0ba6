/* dlcoll_types.hpp: what the functions of dlcoll.hpp take and return: errors, types, reductions,
 * buffers, work handles. dlcoll.hpp includes it. */
#ifndef DLCOLL_TYPES_HPP
#define DLCOLL_TYPES_HPP

#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dlcoll.h"

namespace dlcoll
{

/* --------------------------------------------------------------------------------------- errors */

/* what() is one line for people; detail() says which rank, host, process, and why. */
class error : public std::runtime_error
{
  public:
    explicit error(const dlcoll_error &d) : std::runtime_error(d.text), detail_(d)
    {
    }
    int code() const noexcept
    {
        return detail_.code;
    }
    int rank() const noexcept
    {
        return detail_.rank;
    }
    const dlcoll_error &detail() const noexcept
    {
        return detail_;
    }

  private:
    dlcoll_error detail_;
};

/* Throws unless code >= 0, and returns it: of a function that leaves no text, */
inline int check_code(int code)
{
    if (code >= 0)
        return code;
    dlcoll_error e = DLCOLL_ERROR_INIT;
    e.code = code;
    std::string(dlcoll_strerror(code)).copy(e.text, sizeof(e.text) - 1);
    throw error(e);
}

/* and of one that leaves it with comm, or with the thread. */
inline int check(int code, const dlcoll_comm *comm = nullptr)
{
    if (code >= 0)
        return code;
    dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_last_error(comm, &e);
    if (e.code != code)
        return check_code(code);
    throw error(e);
}

/* ---------------------------------------------------------------------------- types, reductions */

/* The dlcoll_dtype of a C++ type. For a type of one's own (a half float, say):
 *     template <> struct dlcoll::dtype<half> : dlcoll::dtype_is<DLCOLL_F16> {}; */
template <dlcoll_dtype Value> struct dtype_is {
    static constexpr dlcoll_dtype value = Value;
};

namespace detail
{
template <bool Signed, std::size_t Size> struct integer;
template <> struct integer<true, 1> : dtype_is<DLCOLL_I8> {
};
template <> struct integer<false, 1> : dtype_is<DLCOLL_U8> {
};
template <> struct integer<true, 2> : dtype_is<DLCOLL_I16> {
};
template <> struct integer<false, 2> : dtype_is<DLCOLL_U16> {
};
template <> struct integer<true, 4> : dtype_is<DLCOLL_I32> {
};
template <> struct integer<false, 4> : dtype_is<DLCOLL_U32> {
};
template <> struct integer<true, 8> : dtype_is<DLCOLL_I64> {
};
template <> struct integer<false, 8> : dtype_is<DLCOLL_U64> {
};
} // namespace detail

template <class T, class = void> struct dtype; /* an error that names dtype: see above */
template <class T>
struct dtype<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>>
    : detail::integer<std::is_signed_v<T>, sizeof(T)> {
};
template <> struct dtype<float> : dtype_is<DLCOLL_F32> {
};
template <> struct dtype<double> : dtype_is<DLCOLL_F64> {
};
template <> struct dtype<bool> : dtype_is<DLCOLL_BOOL> {
};
template <> struct dtype<std::byte> : dtype_is<DLCOLL_U8> {
};

/* Elements of a type of one's own, which only reductions of one's own combine:
 *     template <> struct dlcoll::dtype<matrix> : dlcoll::dtype_bytes<matrix> {}; */
template <class T> struct dtype_bytes : dtype_is<DLCOLL_ELEMENT(sizeof(T))> {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= DLCOLL_ELEMENT_MAX);
};
template <class T> struct dtype<std::complex<T>> : dtype_bytes<std::complex<T>> {
};

/* A value and where it is, for DLCOLL_MINLOC and DLCOLL_MAXLOC. */
template <class Value, class Index> struct located {
    Value value;
    Index index;
};
template <> struct dtype<located<std::int16_t, std::int32_t>> : dtype_is<DLCOLL_I16_I32> {
};
template <> struct dtype<located<std::int32_t, std::int32_t>> : dtype_is<DLCOLL_I32_I32> {
};
template <> struct dtype<located<std::int64_t, std::int32_t>> : dtype_is<DLCOLL_I64_I32> {
};
template <> struct dtype<located<std::int64_t, std::int64_t>> : dtype_is<DLCOLL_I64_I64> {
};
template <> struct dtype<located<float, std::int32_t>> : dtype_is<DLCOLL_F32_I32> {
};
template <> struct dtype<located<double, std::int32_t>> : dtype_is<DLCOLL_F64_I32> {
};
template <> struct dtype<located<double, std::int64_t>> : dtype_is<DLCOLL_F64_I64> {
};

template <class T> inline constexpr dlcoll_dtype dtype_v = dtype<std::remove_cv_t<T>>::value;

/* A reduction: a built-in one (DLCOLL_SUM...), or one's own, which ends with the object, or with
 * the last work that has it. */
class reduction
{
  public:
    reduction(dlcoll_op op) noexcept : op_(op)
    {
    }
    reduction(reduction &&) noexcept = default;
    reduction &operator=(reduction &&) = delete;
    dlcoll_op op() const noexcept
    {
        return op_;
    }

    /* Every rank's data times a factor of that rank, added up. */
    template <class T> static reduction premul_sum(T factor)
    {
        reduction r(DLCOLL_SUM);
        check(dlcoll_op_create_premul(&r.op_, &factor, dtype_v<T>));
        r.own(nullptr);
        return r;
    }

    /* fn(a, b) of two elements, associative; flags as dlcoll_op_create_user()'s. If it throws on
     * any rank, the operation fails on all of them: with DLCOLL_OP_MAY_FAIL, which is set unless fn
     * is noexcept, and which must be so on all ranks. For buffers of T only. */
    template <class T, class F> static reduction of(F fn, unsigned flags = 0)
    {
        reduction r(DLCOLL_SUM);
        auto kept = std::make_shared<F>(std::move(fn));
        if (!std::is_nothrow_invocable_v<F &, T &, const T &>)
            flags |= DLCOLL_OP_MAY_FAIL;
        check(dlcoll_op_create_user(&r.op_, apply<T, F>, kept.get(), flags));
        r.own(std::move(kept));
        return r;
    }

  private:
    template <class> friend class operations;

    void own(std::shared_ptr<void> fn)
    {
        own_ = {nullptr, [op = op_, fn = std::move(fn)](void *) { dlcoll_op_free(op); }};
    }

    /* The library is C: an exception may not pass through it. */
    template <class T, class F>
    static void apply(void *acc, const void *in, std::size_t count, dlcoll_dtype,
                      void *ctx) noexcept
    {
        T *a = static_cast<T *>(acc);
        const T *b = static_cast<const T *>(in);
        try {
            for (std::size_t i = 0; i < count; i++)
                a[i] = (*static_cast<F *>(ctx))(a[i], b[i]);
        } catch (const std::exception &e) {
            dlcoll_op_fail(e.what());
        } catch (...) {
            dlcoll_op_fail("an exception that is no std::exception");
        }
    }

    dlcoll_op op_;
    std::shared_ptr<void> own_;
};

/* -------------------------------------------------------------------------------------- buffers */

/* `count` elements from `data`. */
template <class T> class span
{
  public:
    span(T *data, std::size_t size) : data_(data), size_(size)
    {
    }
    T *data() const noexcept
    {
        return data_;
    }
    std::size_t size() const noexcept
    {
        return size_;
    }

  private:
    T *data_;
    std::size_t size_;
};

/* Blocks of a buffer, as if they lay one after the other: `blocks` of `length` elements, `stride`
 * apart. A column of a matrix: strided(m, rows, 1, columns). */
template <class T> class view : public span<T>
{
  public:
    view(T *data, std::size_t blocks, std::size_t length, std::size_t stride)
        : span<T>(data, blocks * length), layout_(DLCOLL_LAYOUT_INIT)
    {
        layout_.blocks = blocks;
        layout_.length = length;
        layout_.stride = stride;
    }
    const dlcoll_layout &layout() const noexcept
    {
        return layout_;
    }

  private:
    dlcoll_layout layout_;
};

namespace detail
{
template <class B> struct view_test : std::false_type {
};
template <class T> struct view_test<view<T>> : std::true_type {
};
template <class B> inline constexpr bool is_view = view_test<std::decay_t<B>>::value;
} // namespace detail

/* Blocks of `length` elements, `stride` apart, of a buffer from element `first` on. */
template <class B>
auto strided(B &&b, std::size_t blocks, std::size_t length, std::size_t stride,
             std::size_t first = 0)
{
    if (blocks && first + (blocks - 1) * stride + length > std::size(b))
        throw std::invalid_argument("dlcoll: the blocks are not in the buffer");
    return view<std::remove_pointer_t<decltype(std::data(b))>>(std::data(b) + first, blocks, length,
                                                               stride);
}

/* The ranks from which this one receives, and those to which it sends. */
class graph
{
  public:
    graph(std::vector<int> sources, std::vector<int> dests)
        : sources_(std::move(sources)), dests_(std::move(dests)), graph_(DLCOLL_GRAPH_INIT)
    {
        graph_.sources = sources_.data();
        graph_.nsources = sources_.size();
        graph_.dests = dests_.data();
        graph_.ndests = dests_.size();
    }
    graph(const graph &) = delete;
    graph &operator=(const graph &) = delete;
    const dlcoll_graph *get() const noexcept
    {
        return &graph_;
    }

  private:
    std::vector<int> sources_, dests_;
    dlcoll_graph graph_;
};

/* The span of anything with data() and size(), and of arrays. */
template <class B> auto span_of(B &&b)
{
    return span<std::remove_pointer_t<decltype(std::data(b))>>(std::data(b), std::size(b));
}

/* A number for each rank, of anything with data() and size() of std::size_t; or none. */
class counts
{
  public:
    counts() noexcept = default;
    template <class C> counts(const C &c) : data_(std::data(c)), size_(std::size(c))
    {
    }
    const std::size_t *data() const noexcept
    {
        return data_;
    }
    std::size_t size() const noexcept
    {
        return size_;
    }

  private:
    const std::size_t *data_ = nullptr;
    std::size_t size_ = 0;
};

/* One of the buffers of all_reduce_coalesced(): in place, or from one into another. */
template <class T> class in_out
{
  public:
    using element = T;
    template <class B, class = std::enable_if_t<!std::is_same_v<std::decay_t<B>, in_out>>>
    in_out(B &&x) : in_out(x, x)
    {
    }
    template <class A, class B> in_out(const A &in, B &&out)
    {
        const span<const T> s(std::data(in), std::size(in));
        const span<T> d(std::data(out), std::size(out));
        if (s.size() != d.size())
            throw std::invalid_argument("dlcoll: the buffers differ in size");
        c_ = {s.data(), d.data(), d.size()};
    }

  private:
    dlcoll_span c_; /* alone: a list of these is one of those */
};
template <class B>
in_out(B &&) -> in_out<std::remove_pointer_t<decltype(std::data(std::declval<B &>()))>>;
template <class A, class B>
in_out(const A &, B &&) -> in_out<std::remove_pointer_t<decltype(std::data(std::declval<B &>()))>>;

namespace detail
{
inline char nothing; /* where a buffer of no elements is */
}

/* The sends and receives of a batch(). */
template <class A> dlcoll_p2p p2p_send(const A &in, int peer, int tag = 0)
{
    const auto s = span_of(in);
    const void *p = s.size() ? static_cast<const void *>(s.data()) : &detail::nothing;
    return {p, nullptr, s.size(), dtype_v<std::remove_pointer_t<decltype(s.data())>>, peer, tag, 0};
}
template <class B> dlcoll_p2p p2p_recv(B &&out, int peer, int tag = 0)
{
    const auto d = span_of(out);
    void *p = d.size() ? static_cast<void *>(d.data()) : &detail::nothing;
    return {nullptr, p, d.size(), dtype_v<std::remove_pointer_t<decltype(d.data())>>, peer, tag, 0};
}

/* ---------------------------------------------------------------------------------------------
 * work */

/* An operation under way. Its buffers are the library's until it is complete: so the destructor
 * waits for that, also when an exception is on its way. It cancels a receive that no message has
 * matched.
 */
class work
{
  public:
    work() noexcept : comm_(nullptr) /* none */
    {
    }
    work(dlcoll_work *w, const dlcoll_comm *c, std::shared_ptr<void> op = nullptr) noexcept
        : op_(std::move(op)), work_(w), comm_(c)
    {
    }

    /* Begins one of comm.persistent(), which may be started again once it is complete. */
    void start()
    {
        check(dlcoll_start(work_.get()), comm_);
    }
    void wait()
    {
        check(dlcoll_wait(work_.get()), comm_);
    }
    bool test()
    {
        return check(dlcoll_test(work_.get()), comm_) != DLCOLL_INPROGRESS;
    }
    /* Whether it is complete. */
    bool wait_for(std::chrono::milliseconds limit)
    {
        return check(dlcoll_wait_for(work_.get(), limit.count()), comm_) != DLCOLL_INPROGRESS;
    }
    /* Cancels a receive, for which wait() then throws an error of DLCOLL_ECANCELED. False: it has a
     * message already. */
    bool cancel()
    {
        const int code = dlcoll_cancel(work_.get());
        if (code != DLCOLL_ESTATE)
            check(code, comm_);
        return code == 0;
    }
    dlcoll_work *get() const noexcept
    {
        return work_.get();
    }
    const dlcoll_comm *comm() const noexcept
    {
        return comm_;
    }

  private:
    struct drop {
        void operator()(dlcoll_work *w) const noexcept
        {
            dlcoll_work_drop(w);
        }
    };
    std::shared_ptr<void> op_; /* its reduction, if that is one's own */
    std::unique_ptr<dlcoll_work, drop> work_;
    const dlcoll_comm *comm_;
};

namespace detail
{
template <class Works> std::vector<dlcoll_work *> handles(const Works &works)
{
    std::vector<dlcoll_work *> all;
    all.reserve(static_cast<std::size_t>(std::distance(std::begin(works), std::end(works))));
    for (const work &w : works)
        all.push_back(w.get());
    return all;
}
} // namespace detail

/* Waits for anything with begin() and end() of works; works without an operation are passed over.
 * A negative limit: none.
 *
 * Until one is complete: which; or how many there are, when the time is over. */
template <class Works>
std::size_t wait_any(const Works &works,
                     std::chrono::milliseconds limit = std::chrono::milliseconds(-1))
{
    const auto all = detail::handles(works);
    std::size_t index = all.size();
    const int code = dlcoll_wait_any(all.data(), all.size(), &index, limit.count());
    if (code == DLCOLL_INPROGRESS)
        return all.size();
    if (index == all.size()) /* there is none */
        return static_cast<std::size_t>(check_code(code));
    auto it = std::begin(works);
    std::advance(it, index);
    check(code, it->comm());
    return index;
}

/* Waits until all are complete. Returns whether they are. */
template <class Works>
bool wait_all(const Works &works, std::chrono::milliseconds limit = std::chrono::milliseconds(-1))
{
    const auto all = detail::handles(works);
    const int code = dlcoll_wait_all(all.data(), all.size(), limit.count());
    for (const work &w : works) { /* whose failure it is */
        if (code < 0 && w.get() && dlcoll_test(w.get()) < 0)
            check(code, w.comm());
    }
    return check_code(code) == DLCOLL_OK;
}

} // namespace dlcoll

#endif
