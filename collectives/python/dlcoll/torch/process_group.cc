// process_group.cc: torch.distributed's CPU backend "dlcoll", as a c10d::Backend over dlcoll.h.
//
// Main path: torch.distributed.all_reduce(t) -> Group::allreduce() -> dlcoll_all_reduce() on the
// memory of t.
//
// A call with asyncOp = false runs in the caller's thread and returns a completed work. Any other
// call gets a work handle of libdlcoll, whose threads carry the operation out. A future is
// completed by a thread of the communicator, which exists from the first future on.
//
// Tensors that are contiguous are used where they are. Any other tensor goes through a contiguous
// copy.
//
// Threads: any thread may call any operation. `Comm::entry` serialises the calls into libdlcoll;
// nobody holds it while waiting for a work handle.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/utils/pybind.h>

#include <condition_variable>
#include <deque>
#include <thread>

#include "dlcoll.h"

namespace
{

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Millis = std::chrono::milliseconds;
using c10d::OpType;
using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;

constexpr Millis kEndOfGroup{2000}; // a group that ends waits so long for the others

[[noreturn]] void fail(const std::string &text)
{
    C10_THROW_ERROR(DistBackendError, "dlcoll: " + text);
}

// The text of the last failure on `comm`, which names the rank, its host and the cause.
std::string error_text(const dlcoll_comm *comm, int code)
{
    dlcoll_error e = DLCOLL_ERROR_INIT;
    std::string kind =
        code == DLCOLL_ETIMEDOUT ? "timeout in " : ""; // the word that programs look for
    if (dlcoll_last_error(comm, &e) == 0 && e.code == code && e.text[0])
        return kind + e.text;
    return kind + dlcoll_strerror(code);
}

// ----------------------------------------------------------------------------------------- types

struct Type {
    dlcoll_dtype dtype;
    int64_t per_element; // how many elements of `dtype` one of the tensor's is
};

// `moves_only`: the operation does not compute, so that a type without arithmetic goes as bytes.
Type type_of(const Tensor &t, bool moves_only)
{
    switch (t.scalar_type()) {
    case at::kChar:
        return {DLCOLL_I8, 1};
    case at::kByte:
        return {DLCOLL_U8, 1};
    case at::kShort:
        return {DLCOLL_I16, 1};
    case at::kUInt16:
        return {DLCOLL_U16, 1};
    case at::kInt:
        return {DLCOLL_I32, 1};
    case at::kUInt32:
        return {DLCOLL_U32, 1};
    case at::kLong:
        return {DLCOLL_I64, 1};
    case at::kUInt64:
        return {DLCOLL_U64, 1};
    case at::kHalf:
        return {DLCOLL_F16, 1};
    case at::kBFloat16:
        return {DLCOLL_BF16, 1};
    case at::kFloat:
        return {DLCOLL_F32, 1};
    case at::kDouble:
        return {DLCOLL_F64, 1};
    case at::kBool:
        return {DLCOLL_BOOL, 1};
    case at::kFloat8_e4m3fn:
        return {DLCOLL_F8E4M3, 1};
    case at::kFloat8_e5m2:
        return {DLCOLL_F8E5M2, 1};
    case at::kComplexHalf:
        return {DLCOLL_F16, 2};
    case at::kComplexFloat:
        return {DLCOLL_F32, 2};
    case at::kComplexDouble:
        return {DLCOLL_F64, 2};
    default:
        break;
    }
    if (!moves_only)
        fail(c10::str("reductions of ", t.scalar_type(), " are not supported"));
    return {DLCOLL_U8, static_cast<int64_t>(t.element_size())};
}

size_t count_of(const Tensor &t, const Type &type)
{
    return static_cast<size_t>(t.numel() * type.per_element);
}

// A reduction: one of libdlcoll's, or the sum of products with a factor, made for one call.
class Reduction
{
  public:
    Reduction(const c10d::ReduceOp &op, const Tensor &t, dlcoll_dtype dtype)
    {
        TORCH_CHECK(!t.is_complex() || c10d::isComplexViewAsRealAllowed(op),
                    "dlcoll: this reduction is not defined for complex tensors");
        switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
        case c10d::ReduceOp::SUM:
            op_ = DLCOLL_SUM;
            return;
        case c10d::ReduceOp::AVG:
            op_ = DLCOLL_AVG;
            return;
        case c10d::ReduceOp::PRODUCT:
            op_ = DLCOLL_PROD;
            return;
        case c10d::ReduceOp::MIN:
            op_ = DLCOLL_MIN;
            return;
        case c10d::ReduceOp::MAX:
            op_ = DLCOLL_MAX;
            return;
        case c10d::ReduceOp::BAND:
            op_ = DLCOLL_BAND;
            return;
        case c10d::ReduceOp::BOR:
            op_ = DLCOLL_BOR;
            return;
        case c10d::ReduceOp::BXOR:
            op_ = DLCOLL_BXOR;
            return;
        case c10d::ReduceOp::PREMUL_SUM:
            break;
        default:
            fail("unknown reduction");
        }
        const auto *factor = dynamic_cast<const c10d::PreMulSumSupplement *>(op.supplement_.get());
        TORCH_CHECK(factor, "dlcoll: PREMUL_SUM without a factor");
        Tensor scalar = factor->tensor_factor.defined()
                            ? factor->tensor_factor.to(at::kCPU, t.scalar_type()).contiguous()
                            : at::full({1}, factor->double_factor, t.options());
        int code = dlcoll_op_create_premul(&op_, scalar.data_ptr(), dtype);
        if (code < 0)
            fail(error_text(nullptr, code));
        owned_ = true;
    }
    ~Reduction()
    {
        if (owned_)
            dlcoll_op_free(op_);
    }
    Reduction(const Reduction &) = delete;
    Reduction &operator=(const Reduction &) = delete;
    operator dlcoll_op() const
    {
        return op_;
    }
    bool is_owned() const
    {
        return owned_;
    }

  private:
    dlcoll_op op_ = DLCOLL_SUM;
    bool owned_ = false;
};

// ----------------------------------------------------------------------------------- communicator

class Handle;

// A communicator of libdlcoll, shared by the group and by the works on it.
struct Comm {
    std::mutex entry; // one thread at a time calls libdlcoll
    dlcoll_comm *comm = nullptr;
    std::shared_ptr<Comm> parent; // outlives this one
    std::mutex lock;              // of what follows
    std::condition_variable wake;
    std::deque<c10::intrusive_ptr<Handle>> pending; // under way, so that their tensors live on
    std::thread completer;
    bool want_completer = false, closing = false;
    c10::intrusive_ptr<c10d::Store> server; // where rank 0 serves a store of its own

    ~Comm();
    void keep(c10::intrusive_ptr<Handle> work);
    void complete_futures();
    void close();
};

// An operation under way, or one that has ended.
class Handle final : public Work
{
  public:
    // `title`: of the profiler's event; NULL: no profiler is active.
    Handle(int rank, OpType type, const char *title, const std::optional<Tensors> &inputs,
           std::shared_ptr<Comm> comm, Tensors outputs, uint64_t seq, Millis timeout)
        : Work(rank, type, title, inputs), comm_(std::move(comm)), outputs_(std::move(outputs)),
          seq_(seq), timeout_(timeout)
    {
    }

    ~Handle() override
    {
        if (handle_)
            dlcoll_work_free(handle_);
    }

    bool isCompleted() override
    {
        return ended_.load(std::memory_order_acquire) || advance(Millis(0));
    }

    bool hasEnded() const
    {
        return ended_.load(std::memory_order_acquire);
    }

    bool isSuccess() const override
    {
        return ended_.load(std::memory_order_acquire) && !error_;
    }

    std::exception_ptr exception() const override
    {
        return ended_.load(std::memory_order_acquire) ? error_ : nullptr;
    }

    // timeout 0: the operation's own.
    bool wait(Millis timeout = kNoTimeout) override
    {
        if (!ended_.load(std::memory_order_acquire) &&
            !advance(timeout == kNoTimeout ? Millis(-1) : timeout))
            fail(c10::str("the operation did not complete within ", timeout.count(), " ms"));
        if (error_)
            std::rethrow_exception(error_);
        return true;
    }

    void synchronize() override
    {
        wait(kNoTimeout);
    }

    void abort() override
    {
        if (comm_->comm)
            dlcoll_abort(comm_->comm, "aborted by the program");
    }

    Tensors result() override
    {
        return outputs_;
    }
    int sourceRank() const override
    {
        return source_;
    }
    uint64_t getSequencenumber() const override
    {
        return seq_;
    }
    Millis getTimeout() const override
    {
        return timeout_;
    }

    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        std::lock_guard<std::mutex> hold(future_lock_);
        if (future_)
            return future_;
        future_ =
            c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
        if (ended_.load(std::memory_order_acquire)) {
            fill_future();
        } else {
            std::lock_guard<std::mutex> hold_comm(comm_->lock);
            if (!comm_->want_completer && !comm_->closing) {
                comm_->want_completer = true;
                comm_->completer = std::thread([c = comm_.get()] { c->complete_futures(); });
            }
            comm_->wake.notify_one();
        }
        return future_;
    }

    // Waits at most `timeout` (negative: without limit) and ends the work if its operation is
    // complete.
    bool advance(Millis timeout)
    {
        std::unique_lock<std::timed_mutex> hold(waiting_, std::defer_lock);
        auto until = std::chrono::steady_clock::now() + timeout;
        if (timeout.count() < 0)
            hold.lock();
        else if (!hold.try_lock_until(until))
            return ended_.load(std::memory_order_acquire);
        if (ended_.load(std::memory_order_acquire))
            return true;
        int code = dlcoll_wait_for(handle_, timeout.count() < 0 ? -1 : timeout.count());
        if (code == DLCOLL_INPROGRESS)
            return false;
        if (code == 0 && peer_ >= 0)
            source_ = peer_;
        end(code);
        return true;
    }

    // The operation is complete with `code`: copies results, and tells who waits for the future.
    void end(int code)
    {
        if (code < 0) {
            error_ = std::make_exception_ptr(make_error(code));
        } else if (after_) {
            at::NoGradGuard no_grad;
            after_();
        }
        after_ = nullptr;
        kept_.clear();
        op_.reset();
        if (recordFunctionEndCallback_) {
            recordFunctionEndCallback_();
            recordFunctionEndCallback_ = nullptr;
        }
        bool has_future;
        {
            std::lock_guard<std::mutex> hold(future_lock_);
            ended_.store(true, std::memory_order_release);
            has_future = future_.defined();
        }
        if (has_future) // its callbacks run without the lock
            fill_future();
    }

    dlcoll_work *handle_ = nullptr;
    int peer_ = -1;               // of a receive from any rank
    std::function<void()> after_; // copies results to where they belong
    Tensors kept_;                // used by the operation until it is complete
    std::shared_ptr<Reduction> op_;

  private:
    c10::Error make_error(int code) const
    {
        return c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                     "dlcoll: " + error_text(comm_->comm, code));
    }

    void fill_future()
    {
        if (error_)
            future_->setErrorIfNeeded(error_);
        else if (!future_->completed())
            future_->markCompleted(c10::IValue(outputs_));
    }

    std::shared_ptr<Comm> comm_;
    Tensors outputs_;
    uint64_t seq_;
    Millis timeout_;
    std::timed_mutex waiting_; // one thread at a time waits for the handle
    std::atomic<bool> ended_{false};
    std::exception_ptr error_;
    int source_ = -1;
    std::mutex future_lock_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// A work that completes runs the program's callbacks, which may start operations: never under
// `lock`.
void Comm::keep(c10::intrusive_ptr<Handle> work)
{
    std::unique_lock<std::mutex> hold(lock);
    pending.push_back(std::move(work));
    if (want_completer)
        wake.notify_one();
    while (!pending.empty()) {
        auto first = pending.front();
        hold.unlock();
        if (!first->isCompleted())
            return;
        hold.lock();
        if (!pending.empty() && pending.front() == first)
            pending.pop_front();
    }
}

// Operations complete in any order when receives are among them, so each is looked at in turn.
void Comm::complete_futures()
{
    std::unique_lock<std::mutex> hold(lock);
    while (!closing) {
        if (pending.empty()) {
            wake.wait(hold);
            continue;
        }
        auto works = pending;
        hold.unlock();
        for (size_t i = 0; i < works.size(); i++)
            works[i]->advance(Millis(i == 0 ? 1 : 0));
        works.clear();
        hold.lock();
        for (auto w = pending.begin(); w != pending.end();)
            w = (*w)->hasEnded() ? pending.erase(w) : w + 1;
    }
}

// Ends what is under way. The group waits a moment for its other ranks, so that none sees this one
// leave in the middle of an operation.
void Comm::close()
{
    std::deque<c10::intrusive_ptr<Handle>> rest;
    {
        std::lock_guard<std::mutex> hold(lock);
        if (closing)
            return;
        closing = true;
        rest.swap(pending);
        wake.notify_all();
    }
    if (completer.joinable())
        completer.join();
    if (!comm)
        return;
    bool under_way = false;
    for (auto &w : rest)
        under_way |= !w->isCompleted();
    if (under_way) {
        dlcoll_abort(comm, "the process group was destroyed");
        for (auto &w : rest)
            w->advance(Millis(-1));
    } else {
        dlcoll_opts o = DLCOLL_OPTS_INIT;
        o.timeout_ms = kEndOfGroup.count();
        std::lock_guard<std::mutex> hold(entry);
        dlcoll_barrier(comm, &o, nullptr);
    }
}

Comm::~Comm()
{
    close();
    if (comm)
        dlcoll_destroy(comm);
}

// ------------------------------------------------------------------------------------------ group

const char *title_of(OpType type)
{
    switch (type) {
    case OpType::BROADCAST:
        return ":broadcast";
    case OpType::ALLREDUCE:
        return ":all_reduce";
    case OpType::ALLREDUCE_COALESCED:
        return ":all_reduce_coalesced";
    case OpType::REDUCE:
        return ":reduce";
    case OpType::ALLGATHER:
        return ":all_gather";
    case OpType::_ALLGATHER_BASE:
        return ":all_gather_into_tensor";
    case OpType::GATHER:
        return ":gather";
    case OpType::SCATTER:
        return ":scatter";
    case OpType::REDUCE_SCATTER:
        return ":reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
        return ":reduce_scatter_tensor";
    case OpType::ALLTOALL_BASE:
    case OpType::ALLTOALL:
        return ":all_to_all";
    case OpType::SEND:
        return ":send";
    case OpType::RECV:
        return ":recv";
    case OpType::RECVANYSOURCE:
        return ":recvAnySource";
    case OpType::BARRIER:
        return ":barrier";
    default:
        return ":operation";
    }
}

class Group final : public c10d::Backend
{
  public:
    Group(std::shared_ptr<Comm> comm, int rank, int size, Millis timeout, std::string name)
        : Backend(rank, size), comm_(std::move(comm)), timeout_(timeout), name_(std::move(name))
    {
    }
    ~Group() override
    {
        shutdown();
    }

    const std::string getBackendName() const override
    {
        return "dlcoll";
    }
    void setTimeout(Millis timeout) override
    {
        timeout_ = timeout;
    }
    uint64_t getSequenceNumberForGroup() override
    {
        return seq_;
    }
    void setSequenceNumberForGroup() override
    {
    }
    void abort() override
    {
        dlcoll_abort(live().comm, "aborted by the program");
    }
    void shutdown() override
    {
        if (auto comm = std::exchange(comm_, nullptr))
            comm->close();
    }
    c10::intrusive_ptr<Options> getBackendOptions() override
    {
        return c10::make_intrusive<Options>("dlcoll", timeout_);
    }

    c10d::ErrorType getError() override
    {
        dlcoll_error e = DLCOLL_ERROR_INIT;
        if (!comm_ || dlcoll_last_error(comm_->comm, &e) < 0 || e.code == 0)
            return c10d::ErrorType::SUCCESS;
        return e.code == DLCOLL_ETIMEDOUT ? c10d::ErrorType::TIMEOUT
               : e.code == DLCOLL_EPEER   ? c10d::ErrorType::REMOTE_ERROR
                                          : c10d::ErrorType::COMM_ERROR;
    }

    WorkPtr broadcast(Tensors &ts, const c10d::BroadcastOptions &o) override
    {
        const Tensor &t = only(ts, "broadcast");
        Type type = type_of(t, true);
        Place p(t, t);
        return run(OpType::BROADCAST, o.timeout, o.asyncOp, ts, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_broadcast(p.in(), p.out(), count_of(t, type), type.dtype,
                                               int(o.rootRank), c, opts, w);
                   });
    }

    WorkPtr allreduce(Tensors &ts, const c10d::AllreduceOptions &o) override
    {
        const Tensor &t = only(ts, "all_reduce");
        Type type = type_of(t, false);
        auto op = std::make_shared<Reduction>(o.reduceOp, t, type.dtype);
        Place p(t, t);
        p.op = op;
        return run(OpType::ALLREDUCE, o.timeout, o.asyncOp, ts, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_all_reduce(p.in(), p.out(), count_of(t, type), type.dtype, *op,
                                                c, opts, w);
                   });
    }

    WorkPtr allreduce_sparse(Tensors &, const c10d::AllreduceOptions &) override
    {
        fail("all_reduce of sparse tensors is not supported: use to_dense(), or the backend gloo");
    }

    WorkPtr allreduce_coalesced(Tensors &ts, const c10d::AllreduceCoalescedOptions &o) override
    {
        TORCH_CHECK(!ts.empty(), "dlcoll: all_reduce_coalesced needs a tensor");
        Type type = type_of(ts[0], false);
        auto op = std::make_shared<Reduction>(o.reduceOp, ts[0], type.dtype);
        Place p;
        p.op = op;
        p.inputs = ts;
        std::vector<dlcoll_span> spans;
        for (const Tensor &t : ts) {
            check_tensor(t, "all_reduce_coalesced");
            TORCH_CHECK(t.scalar_type() == ts[0].scalar_type(),
                        "dlcoll: all tensors must have one type");
            void *data = p.add(t, true);
            spans.push_back({data, data, count_of(t, type)});
        }
        return run(OpType::ALLREDUCE_COALESCED, o.timeout, o.asyncOp, ts, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_all_reduce_coalesced(spans.data(), spans.size(), type.dtype,
                                                          *op, c, opts, w);
                   });
    }

    WorkPtr reduce(Tensors &ts, const c10d::ReduceOptions &o) override
    {
        const Tensor &t = only(ts, "reduce");
        Type type = type_of(t, false);
        auto op = std::make_shared<Reduction>(o.reduceOp, t, type.dtype);
        Place p(t, t);
        p.op = op;
        return run(OpType::REDUCE, o.timeout, o.asyncOp, ts, p, [&](auto *c, auto *opts, auto **w) {
            return dlcoll_reduce(p.in(), p.out(), count_of(t, type), type.dtype, *op,
                                 int(o.rootRank), c, opts, w);
        });
    }

    WorkPtr allgather(std::vector<Tensors> &outs, Tensors &ins,
                      const c10d::AllgatherOptions &o) override
    {
        return all_gather_list(outs, only(ins, "all_gather"), ins, o);
    }

    // One all_gather; `inputs`: those of all for the profiler, none: the operation has its event
    // already.
    WorkPtr all_gather_list(std::vector<Tensors> &outs, const Tensor &in, const Tensors &inputs,
                            const c10d::AllgatherOptions &o)
    {
        check_tensor(in, "all_gather");
        check_lists(outs, in, "all_gather");
        Type type = type_of(in, true);
        Place p;
        p.inputs = inputs;
        p.is_part = inputs.empty();
        const void *send = p.add(in, false);
        Parts parts = p.add_parts(outs[0], type, true);
        return run(OpType::ALLGATHER, o.timeout, o.asyncOp, outs[0], p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_all_gather_v(send, parts.base, parts.counts.data(),
                                                  parts.displs.data(), type.dtype, c, opts, w);
                   });
    }

    WorkPtr _allgather_base(Tensor &out, Tensor &in, const c10d::AllgatherOptions &o) override
    {
        check_tensor(in, "all_gather_into_tensor");
        check_sizes(out, in, "all_gather_into_tensor");
        Type type = type_of(in, true);
        Place p(in, out);
        Tensors result{out};
        return run(OpType::_ALLGATHER_BASE, o.timeout, o.asyncOp, result, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_all_gather(p.in(), p.out(), count_of(in, type), type.dtype, c,
                                                opts, w);
                   });
    }

    WorkPtr allgather_into_tensor_coalesced(Tensors &outs, Tensors &ins,
                                            const c10d::AllgatherOptions &o) override
    {
        TORCH_CHECK(outs.size() == ins.size() && !ins.empty(),
                    "dlcoll: as many outputs as inputs are needed");
        WorkPtr last;
        for (size_t i = 0; i < ins.size(); i++)
            last = _allgather_base(outs[i], ins[i], o);
        return last; // operations complete in order
    }

    WorkPtr allgather_coalesced(std::vector<Tensors> &outs, Tensors &ins,
                                const c10d::AllgatherOptions &o) override
    {
        TORCH_CHECK(outs.size() == size_t(size_) && !ins.empty(),
                    "dlcoll: all_gather_coalesced needs a list of outputs for each rank");
        WorkPtr last;
        for (size_t i = 0; i < ins.size(); i++) {
            std::vector<Tensors> out(1);
            for (Tensors &of_rank : outs)
                out[0].push_back(of_rank.at(i));
            last = all_gather_list(out, ins[i], i == 0 ? ins : Tensors{}, o);
        }
        return last;
    }

    WorkPtr gather(std::vector<Tensors> &outs, Tensors &ins, const c10d::GatherOptions &o) override
    {
        const Tensor &in = only(ins, "gather");
        Type type = type_of(in, true);
        bool root = o.rootRank == rank_;
        Place p;
        p.inputs = ins;
        const void *send = p.add(in, false);
        Parts parts;
        if (root) {
            check_lists(outs, in, "gather");
            parts = p.add_parts(outs[0], type, true);
        } else {
            TORCH_CHECK_VALUE(outs.empty(),
                              "ProcessGroupDlcoll::gather: requires empty output on non-root");
        }
        Tensors result = root ? outs[0] : Tensors{};
        return run(OpType::GATHER, o.timeout, o.asyncOp, result, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_gather_v(send, count_of(in, type), parts.base,
                                              root ? parts.counts.data() : nullptr,
                                              root ? parts.displs.data() : nullptr, type.dtype,
                                              int(o.rootRank), c, opts, w);
                   });
    }

    WorkPtr scatter(Tensors &outs, std::vector<Tensors> &ins,
                    const c10d::ScatterOptions &o) override
    {
        const Tensor &out = only(outs, "scatter");
        Type type = type_of(out, true);
        bool root = o.rootRank == rank_;
        Place p;
        void *recv = p.add(out, true);
        Parts parts;
        if (root) {
            check_lists(ins, out, "scatter");
            parts = p.add_parts(ins[0], type, false);
            p.inputs = ins[0];
        } else {
            TORCH_CHECK_VALUE(ins.empty(),
                              "ProcessGroupDlcoll::scatter: requires empty input on non-root");
        }
        return run(OpType::SCATTER, o.timeout, o.asyncOp, outs, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_scatter_v(parts.base, root ? parts.counts.data() : nullptr,
                                               root ? parts.displs.data() : nullptr, recv,
                                               count_of(out, type), type.dtype, int(o.rootRank), c,
                                               opts, w);
                   });
    }

    WorkPtr reduce_scatter(Tensors &outs, std::vector<Tensors> &ins,
                           const c10d::ReduceScatterOptions &o) override
    {
        const Tensor &out = only(outs, "reduce_scatter");
        check_lists(ins, out, "reduce_scatter", false);
        Type type = type_of(out, false);
        auto op = std::make_shared<Reduction>(o.reduceOp, out, type.dtype);
        Tensors flat;
        std::vector<size_t> counts;
        for (const Tensor &t : ins[0]) {
            flat.push_back(t.reshape({-1}));
            counts.push_back(count_of(t, type));
        }
        TORCH_CHECK(counts[rank_] == count_of(out, type), "dlcoll: reduce_scatter: part ", rank_,
                    " and the output have different sizes");
        Tensor all = at::cat(flat);
        Place p(all, out);
        p.op = op;
        return run(OpType::REDUCE_SCATTER, o.timeout, o.asyncOp, outs, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_reduce_scatter_v(p.in(), p.out(), counts.data(), type.dtype,
                                                      *op, c, opts, w);
                   });
    }

    WorkPtr _reduce_scatter_base(Tensor &out, Tensor &in,
                                 const c10d::ReduceScatterOptions &o) override
    {
        check_tensor(out, "reduce_scatter_tensor");
        check_sizes(in, out, "reduce_scatter_tensor");
        Type type = type_of(out, false);
        auto op = std::make_shared<Reduction>(o.reduceOp, out, type.dtype);
        Place p(in, out);
        p.op = op;
        Tensors result{out};
        return run(OpType::_REDUCE_SCATTER_BASE, o.timeout, o.asyncOp, result, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_reduce_scatter(p.in(), p.out(), count_of(out, type),
                                                    type.dtype, *op, c, opts, w);
                   });
    }

    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outs, Tensors &ins,
                                            const c10d::ReduceScatterOptions &o) override
    {
        TORCH_CHECK(outs.size() == ins.size() && !ins.empty(),
                    "dlcoll: as many outputs as inputs are needed");
        WorkPtr last;
        for (size_t i = 0; i < ins.size(); i++)
            last = _reduce_scatter_base(outs[i], ins[i], o);
        return last;
    }

    WorkPtr alltoall_base(Tensor &out, Tensor &in, std::vector<int64_t> &out_splits,
                          std::vector<int64_t> &in_splits, const c10d::AllToAllOptions &o) override
    {
        check_tensor(in, "all_to_all_single");
        check_tensor(out, "all_to_all_single");
        TORCH_CHECK(in.scalar_type() == out.scalar_type(),
                    "dlcoll: all_to_all_single: types differ");
        Type type = type_of(in, true);
        Place p(in, out);
        Tensors result{out};
        if (out_splits.empty() && in_splits.empty()) {
            TORCH_CHECK(in.numel() == out.numel() && in.dim() > 0 && in.size(0) % size_ == 0,
                        "Tensor's dim 0 does not divide equally across group size");
            return run(OpType::ALLTOALL_BASE, o.timeout, o.asyncOp, result, p,
                       [&](auto *c, auto *opts, auto **w) {
                           return dlcoll_all_to_all(p.in(), p.out(),
                                                    count_of(in, type) / size_t(size_), type.dtype,
                                                    c, opts, w);
                       });
        }
        auto sent = split(in, in_splits, type), received = split(out, out_splits, type);
        return run(OpType::ALLTOALL_BASE, o.timeout, o.asyncOp, result, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_all_to_all_v(p.in(), sent.data(), nullptr, p.out(),
                                                  received.data(), nullptr, type.dtype, c, opts, w);
                   });
    }

    WorkPtr alltoall(Tensors &outs, Tensors &ins, const c10d::AllToAllOptions &o) override
    {
        TORCH_CHECK(ins.size() == size_t(size_) && outs.size() == size_t(size_),
                    "dlcoll: all_to_all needs a tensor for each rank");
        for (const Tensors *list : {&ins, &outs}) {
            for (const Tensor &t : *list) {
                check_tensor(t, "all_to_all");
                TORCH_CHECK(t.scalar_type() == ins[0].scalar_type(),
                            "dlcoll: all tensors must have one type");
            }
        }
        Type type = type_of(ins[0], true);
        Place p;
        p.inputs = ins;
        auto [in_low, in_high] = span_of(ins);
        auto [out_low, out_high] = span_of(outs);
        bool apart = in_low >= out_high || out_low >= in_high;
        Parts sent = p.add_parts(ins, type, false, apart),
              received = p.add_parts(outs, type, true, apart);
        return run(OpType::ALLTOALL, o.timeout, o.asyncOp, outs, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_all_to_all_v(sent.base, sent.counts.data(), sent.displs.data(),
                                                  received.base, received.counts.data(),
                                                  received.displs.data(), type.dtype, c, opts, w);
                   });
    }

    WorkPtr barrier(const c10d::BarrierOptions &o) override
    {
        Place p;
        Tensors none;
        return run(OpType::BARRIER, o.timeout, o.asyncOp, none, p,
                   [&](auto *c, auto *opts, auto **w) { return dlcoll_barrier(c, opts, w); });
    }

    void monitoredBarrier(const c10d::BarrierOptions &o, bool) override
    {
        std::vector<int> missing(static_cast<size_t>(size_));
        size_t n = missing.size();
        dlcoll_opts opts = DLCOLL_OPTS_INIT;
        int64_t ms = (o.timeout == c10d::kUnsetTimeout ? timeout_ : o.timeout).count();
        opts.timeout_ms = std::max<int64_t>(ms, 1); // 0 would be the communicator's own
        Comm &comm = live();
        std::lock_guard<std::mutex> hold(comm.entry);
        int code = dlcoll_monitored_barrier(comm.comm, missing.data(), &n, &opts);
        if (code == DLCOLL_ETIMEDOUT && n > 0) {
            missing.resize(n);
            fail(c10::str("[Rank ", rank_, "]: Rank", n > 1 ? "s " : " ", c10::Join(", ", missing),
                          " failed to pass monitoredBarrier in ", ms, " ms. Rank ", rank_,
                          " timed out in monitoredBarrier: ", error_text(comm.comm, code)));
        }
        if (code < 0)
            fail(error_text(comm.comm, code));
    }

    WorkPtr send(Tensors &ts, int peer, int tag) override
    {
        const Tensor &t = only(ts, "send");
        Type type = type_of(t, true);
        Place p;
        p.inputs = ts;
        const void *data = p.add(t, false);
        Tensors none;
        return run(OpType::SEND, c10d::kUnsetTimeout, true, none, p,
                   [&](auto *c, auto *opts, auto **w) {
                       opts->tag = tag;
                       return dlcoll_send(data, count_of(t, type), type.dtype, peer, c, opts, w);
                   });
    }

    WorkPtr recv(Tensors &ts, int peer, int tag) override
    {
        const Tensor &t = only(ts, "recv");
        Type type = type_of(t, true);
        Place p;
        p.inputs = ts;
        void *data = p.add(t, true);
        return run(OpType::RECV, c10d::kUnsetTimeout, true, ts, p,
                   [&](auto *c, auto *opts, auto **w) {
                       opts->tag = tag;
                       return dlcoll_recv(data, count_of(t, type), type.dtype, peer, c, opts, w);
                   });
    }

    WorkPtr recvAnysource(Tensors &ts, int tag) override
    {
        const Tensor &t = only(ts, "recv");
        Type type = type_of(t, true);
        Place p;
        p.inputs = ts;
        void *data = p.add(t, true);
        return run(OpType::RECVANYSOURCE, c10d::kUnsetTimeout, true, ts, p,
                   [&](auto *c, auto *opts, auto **w) {
                       opts->tag = tag;
                       return dlcoll_recv_any(data, count_of(t, type), type.dtype, p.peer, c, opts,
                                              w);
                   });
    }

    std::shared_ptr<Comm> comm() const
    {
        return comm_;
    }

  private:
    // Parts of a list of tensors, as the _v operations take them: displacements are from the lowest
    // address.
    struct Parts {
        void *base = nullptr;
        std::vector<size_t> counts, displs;
    };

    // The addresses from the first to the last element of all tensors; (UINTPTR_MAX, 0): there are
    // no elements.
    static std::pair<uintptr_t, uintptr_t> span_of(const Tensors &list)
    {
        uintptr_t low = UINTPTR_MAX, high = 0;
        for (const Tensor &t : list) {
            if (t.numel() == 0)
                continue;
            auto at = reinterpret_cast<uintptr_t>(t.data_ptr());
            low = std::min(low, at);
            high = std::max(high, at + t.nbytes());
        }
        return {low, high};
    }

    // Where the data of one operation lies, and what must be copied back when it is complete.
    struct Place {
        Place() = default;
        Place(const Tensor &in, const Tensor &out)
        {
            bool same = in.is_same(out);
            out_ = add(out, true);
            in_ = same ? out_ : add(in, false);
            inputs = {in};
        }

        void *in() const
        {
            return in_;
        }
        void *out() const
        {
            return out_;
        }

        // The address of contiguous data: the tensor's own, or that of a copy. `written`: copied
        // back afterwards.
        void *add(const Tensor &t, bool written)
        {
            Tensor real = t.is_contiguous() ? t : t.contiguous();
            if (written && !real.is_same(t))
                back.emplace_back(t, real);
            kept.push_back(real);
            return real.data_ptr();
        }

        // Tensors that lie at multiples of the element's size from each other need no copy, unless
        // other data of the operation lies between them. apart: the caller has seen that no other
        // list's data does.
        Parts add_parts(const Tensors &list, const Type &type, bool written, bool apart = true)
        {
            size_t unit = list.empty() ? 1 : size_t(list[0].element_size() / type.per_element);
            Parts p;
            auto [low, high] = span_of(list);
            for (const Tensor &other : kept) {
                auto at = reinterpret_cast<uintptr_t>(other.data_ptr());
                apart = apart && (at >= high || at + other.nbytes() <= low);
            }
            for (const Tensor &t : list) {
                auto at = reinterpret_cast<uintptr_t>(t.data_ptr());
                apart = apart && (t.numel() == 0 || (t.is_contiguous() && (at - low) % unit == 0));
                p.counts.push_back(count_of(t, type));
                p.displs.push_back(t.numel() == 0 ? 0 : (at - low) / unit);
            }
            if (apart && high > 0) {
                p.base = reinterpret_cast<void *>(low);
                kept.insert(kept.end(), list.begin(), list.end());
                return p;
            }
            Tensors flat;
            for (const Tensor &t : list)
                flat.push_back(t.reshape({-1}));
            Tensor all = list.empty() ? Tensor() : at::cat(flat);
            size_t at = 0;
            int64_t element = 0;
            for (size_t i = 0; i < list.size(); i++) {
                p.displs[i] = at;
                at += p.counts[i];
                if (written)
                    back.emplace_back(
                        list[i], all.narrow(0, element, list[i].numel()).view(list[i].sizes()));
                element += list[i].numel();
            }
            if (all.defined())
                p.base = add(all, false);
            return p;
        }

        Tensors kept;
        Tensors inputs;       // for the profiler
        bool is_part = false; // of an operation that has an event of the profiler's already
        std::vector<std::pair<Tensor, Tensor>> back;
        std::shared_ptr<Reduction> op;
        int *peer = nullptr; // where a receive from any rank says whose message it was

      private:
        void *in_ = nullptr, *out_ = nullptr;
    };

    static void check_tensor(const Tensor &t, const char *name)
    {
        TORCH_CHECK(t.layout() == at::kStrided, "dlcoll: ", name,
                    ": sparse tensors are not supported: use ", "to_dense(), or the backend gloo");
        TORCH_CHECK(t.device().is_cpu(), "dlcoll: ", name, ": tensors must be on the CPU, not on ",
                    t.device(), ": use the backend cpu:dlcoll,cuda:nccl");
    }

    static const Tensor &only(const Tensors &ts, const char *name)
    {
        TORCH_CHECK_VALUE(ts.size() == 1, "ProcessGroupDlcoll::", name,
                          ": requires a single-element tensor list");
        check_tensor(ts[0], name);
        return ts[0];
    }

    void check_lists(const std::vector<Tensors> &lists, const Tensor &part, const char *name,
                     bool equal = true) const
    {
        TORCH_CHECK_VALUE(lists.size() == 1 && lists[0].size() == size_t(size_),
                          "ProcessGroupDlcoll::", name, ": requires one list of ", size_,
                          " tensors");
        for (const Tensor &t : lists[0]) {
            check_tensor(t, name);
            TORCH_CHECK_VALUE(t.scalar_type() == part.scalar_type(), "ProcessGroupDlcoll::", name,
                              ": tensors have different types");
            TORCH_CHECK_VALUE(!equal || t.numel() == part.numel(), "ProcessGroupDlcoll::", name,
                              ": tensors have different sizes");
        }
    }

    void check_sizes(const Tensor &whole, const Tensor &part, const char *name) const
    {
        check_tensor(whole, name);
        TORCH_CHECK(whole.scalar_type() == part.scalar_type(), "dlcoll: ", name,
                    ": tensors have different types");
        TORCH_CHECK(whole.numel() == part.numel() * size_, "dlcoll: ", name,
                    ": the larger tensor must have ", size_,
                    " times as many elements as the smaller one");
    }

    std::vector<size_t> split(const Tensor &t, const std::vector<int64_t> &splits,
                              const Type &type) const
    {
        std::vector<size_t> counts;
        int64_t rows = t.dim() ? t.size(0) : 0, sum = 0;
        size_t per_row = rows ? count_of(t, type) / size_t(rows) : 0;
        if (splits.empty()) {
            TORCH_CHECK(rows % size_ == 0,
                        "Tensor's dim 0 does not divide equally across group size");
            return std::vector<size_t>(size_t(size_), count_of(t, type) / size_t(size_));
        }
        TORCH_CHECK(splits.size() == size_t(size_),
                    "Number of tensor splits not equal to group size");
        for (int64_t n : splits) {
            TORCH_CHECK(n >= 0, "dlcoll: all_to_all_single: a split is negative");
            counts.push_back(size_t(n) * per_row);
            sum += n;
        }
        TORCH_CHECK(sum == rows, "Split sizes doesn't match total dim 0 size");
        return counts;
    }

    int64_t millis(Millis timeout) const
    {
        return timeout == c10d::kUnsetTimeout || timeout.count() == 0 ? timeout_.count()
                                                                      : timeout.count();
    }

    Comm &live() const
    {
        if (!comm_)
            fail("the process group has been destroyed");
        return *comm_;
    }

    // Starts the operation `call`, and carries it out unless it is asynchronous.
    template <typename Call>
    WorkPtr run(OpType type, Millis timeout, bool async, const Tensors &outputs, Place &p,
                Call call)
    {
        Comm &comm = live();
        dlcoll_opts opts = DLCOLL_OPTS_INIT;
        opts.timeout_ms = millis(timeout);
        bool profiled = at::hasCallbacks() && !p.is_part;
        std::string title = profiled ? name_ + title_of(type) : "";
        auto work =
            c10::make_intrusive<Handle>(rank_, type, profiled ? title.c_str() : nullptr,
                                        profiled ? std::optional<Tensors>(p.inputs) : std::nullopt,
                                        comm_, outputs, ++seq_, Millis(opts.timeout_ms));
        p.peer = &work->peer_;
        int code;
        {
            std::lock_guard<std::mutex> hold(comm.entry);
            code = call(comm.comm, &opts, async ? &work->handle_ : nullptr);
        }
        if (code < 0)
            fail(error_text(comm.comm, code));
        if (!p.back.empty()) {
            work->after_ = [back = std::move(p.back)] {
                for (auto &pair : back)
                    pair.first.copy_(pair.second);
            };
        }
        if (!async) {
            work->end(0);
            return work;
        }
        work->kept_ = std::move(p.kept);
        work->op_ = std::move(p.op);
        if (!work->isCompleted())
            comm.keep(work);
        return work;
    }

    std::shared_ptr<Comm> comm_;
    Millis timeout_;
    std::string name_; // before the profiler's events: "dlcoll"
    std::atomic<uint64_t> seq_{0};
};

// ------------------------------------------------------------------------------------- beginning

// A process started by dlaunch that asks for the job's own world needs no message to get it.
bool is_launched_world(int rank, int size)
{
    const char *fd = getenv("DLAUNCH_SEGMENT_FD"), *r = getenv("RANK"), *n = getenv("WORLD_SIZE");
    return fd && *fd && r && n && atoi(r) == rank && atoi(n) == size;
}

std::weak_ptr<Comm> g_world; // of the process's default group
std::mutex g_world_lock;

// Where libdlcoll finds a TCPStore: the group's own store, or one that rank 0 serves and names in
// the group's store.
std::string store_url(const c10::intrusive_ptr<c10d::Store> &given, int rank,
                      c10::intrusive_ptr<c10d::Store> &server)
{
    c10::intrusive_ptr<c10d::Store> base = given;
    while (auto *prefix = dynamic_cast<c10d::PrefixStore *>(base.get()))
        base = prefix->getUnderlyingStore();
    if (auto *tcp = dynamic_cast<c10d::TCPStore *>(base.get()))
        return c10::str("tcp://", tcp->getHost(), ":", tcp->getPort());
    if (rank == 0) {
        const char *addr = getenv("MASTER_ADDR");
        std::string host = addr && *addr ? addr : "localhost";
        c10d::TCPStoreOptions o;
        o.port = 0;
        o.isServer = true;
        o.waitWorkers = false;
        auto own = c10::make_intrusive<c10d::TCPStore>(host, o);
        given->set("dlcoll/store", c10::str("tcp://", host, ":", own->getPort()));
        server = own;
    }
    std::vector<uint8_t> url = given->get("dlcoll/store");
    return std::string(url.begin(), url.end());
}

std::shared_ptr<Comm> make_world(const c10::intrusive_ptr<c10d::Store> &given, int rank, int size,
                                 Millis timeout, const std::string &name)
{
    auto made = std::make_shared<Comm>();
    dlcoll_init_opts o = DLCOLL_INIT_OPTS_INIT;
    o.backend = DLCOLL_BACKEND_CPU;
    o.timeout_ms = o.init_timeout_ms = timeout.count();
    dlcoll_store *store = nullptr;
    if (!is_launched_world(rank, size) || !name.empty()) {
        std::string url = store_url(given, rank, made->server);
        int code = dlcoll_store_open(&store, url.c_str(), 0, timeout.count());
        if (code < 0)
            fail(error_text(nullptr, code));
        o.store = store;
        o.rank = rank;
        o.world_size = size;
        o.name = name.empty() ? nullptr : name.c_str();
    }
    int code;
    {
        static std::mutex one_at_a_time;
        std::unique_lock<std::mutex> hold(one_at_a_time, std::defer_lock);
        if (!o.name)
            hold.lock();
        code = dlcoll_init(&made->comm, &o);
    }
    std::string why = code < 0 ? error_text(nullptr, code) : "";
    dlcoll_store_close(store);
    if (code < 0)
        fail(why);
    return made;
}

c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store> &store, int rank,
                                         int size, double timeout_s, const std::string &name,
                                         const std::vector<int64_t> &ranks,
                                         const std::string &backend)
{
    Millis timeout(static_cast<int64_t>(timeout_s * 1000));
    std::shared_ptr<Comm> comm, world;
    {
        std::lock_guard<std::mutex> hold(g_world_lock);
        world = g_world.lock();
    }
    if (!ranks.empty() && world) {
        std::vector<int> list(ranks.begin(), ranks.end());
        comm = std::make_shared<Comm>();
        comm->parent = world;
        dlcoll_group_opts o = DLCOLL_GROUP_OPTS_INIT;
        o.timeout_ms = timeout.count();
        o.name = name.c_str();
        std::lock_guard<std::mutex> hold(world->entry);
        int code =
            dlcoll_comm_new_group(world->comm, list.data(), int(list.size()), &comm->comm, &o);
        if (code < 0)
            fail(error_text(world->comm, code));
    } else {
        comm = make_world(store, rank, size, timeout, ranks.empty() ? "" : name);
        if (ranks.empty()) {
            std::lock_guard<std::mutex> hold(g_world_lock);
            g_world = comm;
        }
    }
    return c10::make_intrusive<Group>(comm, rank, size, timeout, backend);
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    m.def("create", &create, pybind11::call_guard<pybind11::gil_scoped_release>());
}
