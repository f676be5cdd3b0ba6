// process_group.cc: torch.distributed's CPU backend "dlcoll", as a c10d::Backend over dlcoll.h.
//
// Main path: torch.distributed.all_reduce(t) -> Group::allreduce() -> dlcoll_all_reduce() on the
// memory of t.
//
//     checks.h      what the arguments of an operation must be
//     types.h       types, reductions, texts of failures
//     place.h       where the data of an operation lies, and what is copied
//     completer.h   threads for what nobody waits for
//     operation.h   communicators, operations under way, how both end
//     work.h        an operation as the program sees it
//     sparse.h      all_reduce of sparse tensors
//     meeting.h     how ranks find each other through the group's store
//
// A call with asyncOp = false runs in the caller's thread and returns a completed work. Any other
// call gets a work handle of libdlcoll.
//
// Threads: any thread may call anything at any time (DLCOLL_THREAD_MULTIPLE). A call holds the
// communicator until it returns, so that another thread may end the group meanwhile.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include "checks.h"
#include "meeting.h"
#include "place.h"
#include "sparse.h"
#include "types.h"
#include "work.h"

namespace
{

using c10d::OpType;
using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;

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

// The group of those ranks of `parent`; only they wait for each other.
std::shared_ptr<Comm> new_group(const Comm &parent, const std::vector<int> &ranks,
                                const std::string &name, Millis timeout)
{
    auto made = std::make_shared<Comm>();
    dlcoll_group_opts o = DLCOLL_GROUP_OPTS_INIT;
    o.timeout_ms = timeout.count();
    o.name = name.c_str();
    int code = dlcoll_comm_new_group(parent.comm, ranks.data(), int(ranks.size()), &made->comm, &o);
    if (code < 0)
        fail(error_text(parent.comm, code));
    if (parent.is_launched)
        count_launched(*made);
    return made;
}

class Group final : public c10d::Backend
{
  public:
    Group(std::shared_ptr<Comm> comm, int rank, int size, Millis timeout, std::string name)
        : Backend(rank, size), comm_(std::move(comm)), timeout_ms_(timeout.count()),
          name_(std::move(name))
    {
    }
    ~Group() override
    {
        try {
            shutdown();
        } catch (...) { // the communicator ends without waiting for others
        }
    }

    const std::string getBackendName() const override
    {
        return "dlcoll";
    }
    void setTimeout(Millis timeout) override
    {
        timeout_ms_ = timeout.count();
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
        std::lock_guard<std::mutex> hold(lock_);
        if (comm_)
            dlcoll_abort(comm_->comm, kAborted);
        if (sparse_)
            sparse_->abort();
    }
    // Does not wait: see close().
    void shutdown() override
    {
        std::shared_ptr<Comm> comm;
        std::shared_ptr<SparseLane> sparse;
        {
            std::lock_guard<std::mutex> hold(lock_);
            comm.swap(comm_);
            sparse.swap(sparse_);
        }
        if (sparse)
            sparse->end();
        if (comm)
            close(comm);
    }
    c10::intrusive_ptr<Options> getBackendOptions() override
    {
        return c10::make_intrusive<Options>("dlcoll", Millis(timeout_ms_));
    }

    bool supportsSplitting() const override
    {
        return true;
    }
    // `ranks`: of this group. NULL for who is not among them.
    c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store> &,
                                      const std::vector<int> &ranks,
                                      const c10::intrusive_ptr<Options> &opts) override
    {
        auto me = std::find(ranks.begin(), ranks.end(), rank_);
        if (me == ranks.end())
            return nullptr;
        Millis timeout = opts ? opts->timeout : Millis(timeout_ms_);
        auto comm = new_group(*live(), ranks, opts ? opts->group_name : "", timeout);
        return c10::make_intrusive<Group>(comm, int(me - ranks.begin()), int(ranks.size()), timeout,
                                          name_);
    }

    c10d::ErrorType getError() override
    {
        dlcoll_error e = DLCOLL_ERROR_INIT;
        auto comm = comm_now();
        if (!comm || dlcoll_last_error(comm->comm, &e) < 0 || e.code == 0)
            return c10d::ErrorType::SUCCESS;
        return e.code == DLCOLL_ETIMEDOUT ? c10d::ErrorType::TIMEOUT
               : e.code == DLCOLL_EPEER   ? c10d::ErrorType::REMOTE_ERROR
                                          : c10d::ErrorType::COMM_ERROR;
    }

    WorkPtr broadcast(Tensors &ts, const c10d::BroadcastOptions &o) override
    {
        check_root(o.rootRank, size_, "broadcast");
        const Tensor &t = root_tensor(ts, o.rootTensor, "broadcast");
        check_alike(ts, "broadcast");
        check_tensor(t, "broadcast");
        Type type = type_of(t, true);
        Place p(t, t, nullptr);
        p.copy_to_others(ts, t);
        return run(OpType::BROADCAST, o.timeout, o.asyncOp, ts, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_broadcast(p.in(), p.out(), count_of(t, type), type.dtype,
                                               int(o.rootRank), c, opts, w);
                   });
    }

    WorkPtr allreduce(Tensors &ts, const c10d::AllreduceOptions &o) override
    {
        check_alike(ts, "all_reduce");
        if (ts[0].is_sparse())
            return allreduce_sparse(ts, o);
        Type type = type_of(ts[0], false);
        auto op = std::make_shared<Reduction>(o.reduceOp, ts[0], type.dtype);
        Tensor t = ts.size() == 1 ? ts[0] : reduced_here(ts, o.reduceOp);
        Place p(t, t, nullptr);
        p.copy_to_others(ts, t);
        p.reduction = op;
        return run(OpType::ALLREDUCE, o.timeout, o.asyncOp, ts, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_all_reduce(p.in(), p.out(), count_of(t, type), type.dtype, *op,
                                                c, opts, w);
                   });
    }

    WorkPtr allreduce_sparse(Tensors &ts, const c10d::AllreduceOptions &o) override
    {
        const char *name = "all_reduce";
        check_alike(ts, name);
        require(ts[0].is_sparse() && ts[0].device().is_cpu(), name,
                "tensors must be sparse, and on the CPU");
        require(o.reduceOp == c10d::ReduceOp::SUM, name, "unsupported reduction operation ",
                "(all_reduce of sparse tensors only works with ReduceOp.SUM)");
        require(ts[0].dim() <= SparseShape::kDims, name, "a sparse tensor has at most ",
                SparseShape::kDims, " dimensions");
        Millis timeout(millis(o.timeout));
        std::string title = at::hasCallbacks() ? name_ + ":sparse_all_reduce" : "";
        auto work = c10::make_intrusive<SparseWork>(rank_, title.empty() ? nullptr : title.c_str(),
                                                    ts, ++seq_, timeout);
        sparse_lane(timeout)->push(work);
        if (!o.asyncOp)
            work->wait();
        return work;
    }

    WorkPtr allreduce_coalesced(Tensors &ts, const c10d::AllreduceCoalescedOptions &o) override
    {
        check_all_reduce_coalesced(ts);
        Type type = type_of(ts[0], false);
        auto op = std::make_shared<Reduction>(o.reduceOp, ts[0], type.dtype);
        Place p;
        p.reduction = op;
        p.inputs = ts;
        std::vector<dlcoll_span> spans;
        for (const Tensor &t : ts) {
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
        check_root(o.rootRank, size_, "reduce");
        root_tensor(ts, o.rootTensor, "reduce");
        const Tensor &t = only(ts, "reduce");
        Type type = type_of(t, false);
        auto op = std::make_shared<Reduction>(o.reduceOp, t, type.dtype);
        Place p(t, t, nullptr);
        p.reduction = op;
        return run(OpType::REDUCE, o.timeout, o.asyncOp, ts, p, [&](auto *c, auto *opts, auto **w) {
            return dlcoll_reduce(p.in(), p.out(), count_of(t, type), type.dtype, *op,
                                 int(o.rootRank), c, opts, w);
        });
    }

    WorkPtr allgather(std::vector<Tensors> &outs, Tensors &ins,
                      const c10d::AllgatherOptions &o) override
    {
        check_all_gather(outs, ins, size_);
        if (ins.size() > 1)
            return all_gather_many(outs, ins, o);
        return all_gather_list(outs, ins[0], ins, o);
    }

    // One all_gather; `inputs`: those of all for the profiler, none: the operation has its event
    // already.
    WorkPtr all_gather_list(std::vector<Tensors> &outs, const Tensor &in, const Tensors &inputs,
                            const c10d::AllgatherOptions &o)
    {
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

    // Of several inputs of each rank: every list of outputs gets those of all ranks.
    WorkPtr all_gather_many(std::vector<Tensors> &outs, const Tensors &ins,
                            const c10d::AllgatherOptions &o)
    {
        Type type = type_of(ins[0], true);
        Place p;
        Tensors flat;
        for (const Tensor &t : ins)
            flat.push_back(t.reshape({-1}));
        Tensor mine = at::cat(flat), all = at::empty({mine.numel() * size_}, mine.options());
        p.inputs = ins;
        p.lists = outs;
        const void *send = p.add(mine, false);
        void *recv = p.add(all, false);
        for (const Tensors &list : outs) {
            for (size_t i = 0; i < list.size(); i++)
                p.copy_to(list[i], all.narrow(0, int64_t(i) * ins[0].numel(), ins[0].numel())
                                       .view(ins[0].sizes()));
        }
        return run(OpType::ALLGATHER, o.timeout, o.asyncOp, outs[0], p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_all_gather(send, recv, count_of(mine, type), type.dtype, c,
                                                opts, w);
                   });
    }

    WorkPtr _allgather_base(Tensor &out, Tensor &in, const c10d::AllgatherOptions &o) override
    {
        check_sizes(out, in, size_, "all_gather_into_tensor");
        Type type = type_of(in, true);
        Place p(in, out, static_cast<char *>(out.data_ptr()) + size_t(rank_) * in.nbytes());
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
        check_all_gather_coalesced(outs, ins, size_);
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
        check_root(o.rootRank, size_, "gather");
        const Tensor &in = only(ins, "gather", "input tensor list");
        Type type = type_of(in, true);
        bool root = o.rootRank == rank_;
        Place p;
        p.inputs = ins;
        const void *send = p.add(in, false);
        Parts parts;
        if (root) {
            check_list(outs, size_, in, "gather", "output");
            parts = p.add_parts(outs[0], type, true);
        } else {
            require(outs.empty(), "gather", "requires empty output on non-root");
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
        check_root(o.rootRank, size_, "scatter");
        const Tensor &out = only(outs, "scatter", "output tensor list");
        Type type = type_of(out, true);
        bool root = o.rootRank == rank_;
        Place p;
        void *recv = p.add(out, true);
        Parts parts;
        if (root) {
            check_list(ins, size_, out, "scatter", "input");
            parts = p.add_parts(ins[0], type, false);
            p.inputs = ins[0];
        } else {
            require(ins.empty(), "scatter", "requires empty input on non-root");
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
        check_list(ins, size_, out, "reduce_scatter", "input", false);
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
        Place p(all, out, nullptr);
        p.reduction = op;
        return run(OpType::REDUCE_SCATTER, o.timeout, o.asyncOp, outs, p,
                   [&](auto *c, auto *opts, auto **w) {
                       return dlcoll_reduce_scatter_v(p.in(), p.out(), counts.data(), type.dtype,
                                                      *op, c, opts, w);
                   });
    }

    WorkPtr _reduce_scatter_base(Tensor &out, Tensor &in,
                                 const c10d::ReduceScatterOptions &o) override
    {
        check_sizes(in, out, size_, "reduce_scatter_tensor");
        Type type = type_of(out, false);
        auto op = std::make_shared<Reduction>(o.reduceOp, out, type.dtype);
        Place p(in, out, static_cast<char *>(out.data_ptr()) - size_t(rank_) * out.nbytes());
        p.reduction = op;
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
        Place p(in, out, out.data_ptr());
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
        bool apart = !range_of(ins).meets(range_of(outs));
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
        int64_t ms = o.timeout == c10d::kUnsetTimeout ? timeout_ms_.load() : o.timeout.count();
        opts.timeout_ms = std::max<int64_t>(ms, 1); // 0 would be the communicator's own
        auto comm = live();
        int code = dlcoll_monitored_barrier(comm->comm, missing.data(), &n, &opts);
        if (code == DLCOLL_ETIMEDOUT && n > 0) {
            missing.resize(n);
            fail(c10::str("[Rank ", rank_, "]: Rank", n > 1 ? "s " : " ", c10::Join(", ", missing),
                          " failed to pass monitoredBarrier in ", ms, " ms. Rank ", rank_,
                          " timed out in monitoredBarrier: ", error_text(comm->comm, code)));
        }
        if (code < 0)
            fail(error_text(comm->comm, code));
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

  private:
    static const Tensor &root_tensor(const Tensors &ts, int64_t root, const char *name)
    {
        require(root >= 0 && root < int64_t(ts.size()), name, "invalid root tensor: ", root);
        return ts[size_t(root)];
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
        return timeout == c10d::kUnsetTimeout || timeout.count() == 0 ? timeout_ms_.load()
                                                                      : timeout.count();
    }

    std::shared_ptr<Comm> comm_now() const
    {
        std::lock_guard<std::mutex> hold(lock_);
        return comm_;
    }

    std::shared_ptr<Comm> live() const
    {
        auto comm = comm_now();
        if (!comm)
            fail("the process group has been destroyed");
        return comm;
    }

    std::shared_ptr<SparseLane> sparse_lane(Millis timeout)
    {
        auto comm = live();
        std::lock_guard<std::mutex> hold(lock_);
        if (!sparse_)
            sparse_ = std::make_shared<SparseLane>(comm, size_, timeout);
        return sparse_;
    }

    // Starts the operation `call`, and carries it out unless it is asynchronous. What can fail on
    // this rank alone comes before the call.
    template <typename Call>
    WorkPtr run(OpType type, Millis timeout, bool async, const Tensors &outputs, Place &p,
                Call call)
    {
        auto comm = live();
        dlcoll_opts opts = DLCOLL_OPTS_INIT;
        opts.timeout_ms = millis(timeout);
        bool profiled = at::hasCallbacks() && !p.is_part;
        std::string title = profiled ? name_ + title_of(type) : "";
        auto work = c10::make_intrusive<DlcollWork>(rank_, type, profiled ? title.c_str() : nullptr,
                                                    profiled ? std::optional<Tensors>(p.inputs)
                                                             : std::nullopt,
                                                    comm, outputs, ++seq_, Millis(opts.timeout_ms));
        Operation &op = *work->op;
        p.peer = &op.peer;
        op.kept = std::move(p.kept);
        op.back = std::move(p.back);
        op.lists = std::move(p.lists);
        op.reduction = std::move(p.reduction);
        if (!async) {
            op.run(call(comm->comm, &opts, static_cast<dlcoll_work **>(nullptr)));
            return work;
        }
        auto notice = op.make_notice();
        int code = call(comm->comm, &opts, &op.handle);
        if (code < 0)
            op.run(code);
        op.begin(std::move(notice));
        return work;
    }

    mutable std::mutex lock_; // of these two
    std::shared_ptr<Comm> comm_;
    std::shared_ptr<SparseLane> sparse_; // once it is needed
    std::atomic<int64_t> timeout_ms_;
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

std::shared_ptr<Comm> make_world(const StorePtr &given, int rank, int size, Millis timeout,
                                 const std::string &name)
{
    auto made = std::make_shared<Comm>();
    dlcoll_init_opts o = DLCOLL_INIT_OPTS_INIT;
    o.backend = DLCOLL_BACKEND_CPU;
    o.flags = DLCOLL_THREAD_MULTIPLE;
    o.timeout_ms = o.init_timeout_ms = timeout.count();
    std::optional<Meeting> meeting;
    if (is_launched_world(rank, size) && name.empty()) {
        await_launched(timeout);
        count_launched(*made);
    } else {
        o.rank = rank;
        o.world_size = size;
        o.name = name.empty() ? nullptr : name.c_str();
        if (size > 1) {
            meeting.emplace(given, rank, size, timeout);
            o.store = meeting->store();
            o.init_timeout_ms = meeting->left().count();
        }
    }
    static std::mutex one_at_a_time;
    std::unique_lock<std::mutex> hold(one_at_a_time, std::defer_lock);
    if (!o.name)
        hold.lock();
    int code = dlcoll_init(&made->comm, &o);
    if (code < 0)
        fail(error_text(nullptr, code));
    return made;
}

// Whoever keeps it keeps a new one from being made.
std::shared_ptr<Comm> the_world()
{
    std::lock_guard<std::mutex> hold(g_world_lock);
    return g_world.lock();
}

c10::intrusive_ptr<c10d::Backend> create(const StorePtr &store, int rank, int size,
                                         double timeout_s, const std::string &name,
                                         const std::vector<int64_t> &ranks,
                                         const std::string &backend)
{
    Millis timeout(static_cast<int64_t>(timeout_s * 1000));
    std::shared_ptr<Comm> comm, world = ranks.empty() ? nullptr : the_world();
    if (world && !world->closed)
        comm = new_group(*world, std::vector<int>(ranks.begin(), ranks.end()), name, timeout);
    else
        comm = make_world(store, rank, size, timeout, ranks.empty() ? "" : name);
    if (ranks.empty()) {
        std::lock_guard<std::mutex> hold(g_world_lock);
        g_world = comm;
    }
    return c10::make_intrusive<Group>(comm, rank, size, timeout, backend);
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    pthread_atfork(nullptr, nullptr, [] {
        g_forks++;
        Completer::forget();
    });
    m.def("create", &create, pybind11::call_guard<pybind11::gil_scoped_release>());
    m.def("finish_all", &finish_all, pybind11::call_guard<pybind11::gil_scoped_release>());
}
