// sparse.h: all_reduce of sparse tensors.
//
// How many elements a rank gives is known only when all ranks have told it, so that this is three
// operations: the shapes and numbers of elements are gathered, then the indices, then the values;
// each rank adds up what it has got. Other operations of the group must not come between them on
// one rank and not on another. So sparse operations have a communicator of their own, a lane, which
// the group makes with the first of them, and carry each other out in the order of their calls.
#ifndef DLCOLL_TORCH_SPARSE_H
#define DLCOLL_TORCH_SPARSE_H

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <deque>
#include <latch>

#include "operation.h"

namespace
{

class SparseWork final : public c10d::Work
{
  public:
    // `tensors`: of one shape; each gets the sum of all, and of all ranks.
    SparseWork(int rank, const char *title, const Tensors &tensors, uint64_t seq, Millis timeout)
        : Work(rank, c10d::OpType::_ALLREDUCE_SPARSE, title, tensors), tensors(tensors),
          timeout(timeout), seq_(seq), future_(c10::make_intrusive<c10::ivalue::Future>(
                                           c10::ListType::create(c10::TensorType::get())))
    {
    }

    // Its callbacks have run when this returns, but for a call in a callback.
    bool wait(Millis most = kNoTimeout) override
    {
        Work::wait(most);
        if (!Completer::inside())
            filled_.wait();
        return true;
    }
    void synchronize() override
    {
    }
    Tensors result() override
    {
        return tensors;
    }
    uint64_t getSequencenumber() const override
    {
        return seq_;
    }
    Millis getTimeout() const override
    {
        return timeout;
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        return future_;
    }

    // Once.
    void end(const std::exception_ptr &error) noexcept
    {
        try {
            at::ThreadLocalStateGuard as_at_the_call(state_);
            finish(error);
            if (error)
                future_->setError(error);
            else
                future_->markCompleted(c10::IValue(tensors));
        } catch (const std::exception &e) {
            TORCH_WARN("dlcoll: a callback of a future has failed: ", e.what());
        } catch (...) {
            TORCH_WARN("dlcoll: a callback of a future has failed");
        }
        filled_.count_down();
    }

    const Tensors tensors;
    const Millis timeout;

  private:
    const uint64_t seq_;
    const c10::intrusive_ptr<c10::ivalue::Future> future_;
    const at::ThreadLocalState state_; // for the callbacks
    std::latch filled_{1};             // its callbacks have run
};

// What ranks tell each other of a tensor.
struct SparseShape {
    static constexpr int64_t kDims = 16;
    int64_t elements = 0, type = 0, sparse_dims = 0, dims = 0, sizes[kDims] = {};

    SparseShape() = default;
    explicit SparseShape(const Tensor &t)
        : elements(t._nnz()), type(int64_t(t.scalar_type())), sparse_dims(t.sparse_dim()),
          dims(t.dim())
    {
        std::copy(t.sizes().begin(), t.sizes().end(), sizes);
    }
    bool fits(const SparseShape &other) const
    {
        return type == other.type && sparse_dims == other.sparse_dims && dims == other.dims &&
               std::equal(sizes, sizes + kDims, other.sizes);
    }
};

class SparseLane final : public Item, public std::enable_shared_from_this<SparseLane>
{
  public:
    // The communicator is made among the operations of `parent`, in their order.
    SparseLane(std::shared_ptr<Comm> parent, int size, Millis timeout)
        : parent_(std::move(parent)), comm_(std::make_shared<Comm>()), size_(size_t(size))
    {
        dlcoll_group_opts o = DLCOLL_GROUP_OPTS_INIT;
        o.timeout_ms = timeout.count();
        int code = dlcoll_comm_dup(parent_->comm, &comm_->comm, &o, &making_);
        if (code < 0)
            fail(error_text(parent_->comm, code));
    }
    ~SparseLane() override
    {
        if (making_ && !parent_->is_forked()) // no operation has come to it
            result_of_making();
    }

    void push(c10::intrusive_ptr<SparseWork> work)
    {
        Completer::get().begin();
        std::lock_guard<std::mutex> hold(lock_);
        queue_.push_back(std::move(work));
        go_on();
    }

    void abort()
    {
        std::lock_guard<std::mutex> hold(lock_);
        aborted_ = true;
        if (is_made_)
            dlcoll_abort(comm_->comm, kAborted);
    }

    // When what has been pushed is done, the communicator ends.
    void end()
    {
        std::lock_guard<std::mutex> hold(lock_);
        closed_ = true;
        if (!runs_)
            leave();
    }

    // In a thread of the completer: one operation. Its callbacks, which may wait for the next one,
    // run beside that.
    void complete() noexcept override
    {
        c10::intrusive_ptr<SparseWork> work;
        {
            std::lock_guard<std::mutex> hold(lock_);
            work = std::move(queue_.front());
            queue_.pop_front();
        }
        std::exception_ptr error;
        try {
            all_reduce(*work);
        } catch (...) {
            error = std::current_exception();
        }
        {
            std::lock_guard<std::mutex> hold(lock_);
            runs_ = false;
            if (!queue_.empty())
                go_on();
            else if (closed_)
                leave();
        }
        work->end(error);
    }

  private:
    using Until = std::chrono::steady_clock::time_point;

    // Under the lock.
    void go_on() noexcept
    {
        if (!std::exchange(runs_, true))
            Completer::get().push(shared_from_this());
    }
    void leave() noexcept
    {
        if (is_made_)
            close(comm_);
    }

    // A failure is one of the whole group.
    void check(int code, const Comm &comm)
    {
        if (code == 0)
            return;
        std::string text = error_text(comm.comm, code);
        dlcoll_abort(parent_->comm, text.c_str());
        fail(text);
    }

    int result_of_making() noexcept
    {
        int code = dlcoll_wait(making_);
        dlcoll_work_free(std::exchange(making_, nullptr));
        return code;
    }

    void await_communicator()
    {
        if (!making_)
            return;
        int code = result_of_making();
        if (code == 0 && parent_->is_launched)
            count_launched(*comm_);
        {
            std::lock_guard<std::mutex> hold(lock_);
            is_made_ = code == 0;
            if (is_made_ && aborted_)
                dlcoll_abort(comm_->comm, kAborted);
        }
        check(code, *parent_);
    }

    // The rows of all ranks, one below the other; `shapes` says how many each rank has.
    Tensor gather(const Tensor &mine, const std::vector<SparseShape> &shapes, Until until)
    {
        Type type = type_of(mine, true);
        std::vector<int64_t> sizes = mine.sizes().vec();
        std::vector<size_t> counts, displs;
        sizes[0] = 0;
        size_t total = 0, per_row = size_t(type.per_element);
        for (int64_t i = 1; i < mine.dim(); i++)
            per_row *= size_t(mine.size(i));
        for (const SparseShape &s : shapes) {
            sizes[0] += s.elements;
            displs.push_back(total);
            counts.push_back(size_t(s.elements) * per_row);
            total += counts.back();
        }
        Tensor all = at::empty(sizes, mine.options());
        dlcoll_opts o = options(until);
        check(dlcoll_all_gather_v(mine.data_ptr(), all.data_ptr(), counts.data(), displs.data(),
                                  type.dtype, comm_->comm, &o, nullptr),
              *comm_);
        return all;
    }

    static dlcoll_opts options(Until until)
    {
        dlcoll_opts o = DLCOLL_OPTS_INIT;
        auto left =
            std::chrono::duration_cast<Millis>(until - std::chrono::steady_clock::now()).count();
        o.timeout_ms = std::max<int64_t>(left, 1);
        return o;
    }

    void all_reduce(const SparseWork &work)
    {
        Until until = std::chrono::steady_clock::now() + work.timeout;
        await_communicator();
        if (!is_made_)
            check(DLCOLL_ESTATE, *parent_);
        at::AutoDispatchBelowADInplaceOrView plain; // as memory: no gradients, no inference mode
        Tensor mine = work.tensors[0];
        for (size_t i = 1; i < work.tensors.size(); i++)
            mine = mine.add(work.tensors[i]);
        mine = mine.coalesce();
        SparseShape shape(mine);
        std::vector<SparseShape> shapes(size_);
        dlcoll_opts o = options(until);
        check(dlcoll_all_gather(&shape, shapes.data(), sizeof(shape), DLCOLL_U8, comm_->comm, &o,
                                nullptr),
              *comm_);
        for (size_t r = 0; r < size_; r++)
            TORCH_CHECK(shape.fits(shapes[r]),
                        "dlcoll: all_reduce of sparse tensors: the types or "
                        "dimensions of rank ",
                        r, " do not match this rank's");
        Tensor indices = gather(mine._indices().t().contiguous(), shapes, until);
        Tensor values = gather(mine._values().contiguous(), shapes, until);
        Tensor sum =
            at::_sparse_coo_tensor_unsafe(indices.t(), values, mine.sizes(), mine.options())
                .coalesce();
        for (Tensor t : work.tensors)
            t.copy_(sum);
    }

    const std::shared_ptr<Comm> parent_, comm_;
    const size_t size_;
    dlcoll_work *making_ = nullptr; // only the constructor, and then who runs
    std::mutex lock_;               // of what follows
    std::deque<c10::intrusive_ptr<SparseWork>> queue_;
    bool runs_ = false; // it is in the completer's queue, or carries out an operation
    bool closed_ = false, aborted_ = false, is_made_ = false;
};

} // namespace

#endif
