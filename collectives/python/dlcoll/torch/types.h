// types.h: what libdlcoll calls the types and reductions of PyTorch, and how its failures are told.
#ifndef DLCOLL_TORCH_TYPES_H
#define DLCOLL_TORCH_TYPES_H

#include <c10/core/InferenceMode.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <string>

#include "dlcoll.h"

namespace
{

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Millis = std::chrono::milliseconds;

[[noreturn]] void fail(const std::string &text)
{
    C10_THROW_ERROR(DistBackendError, "dlcoll: " + text);
}

// "timeout" is a word that programs look for.
std::string with_kind(int code, const char *text)
{
    return std::string(code == DLCOLL_ETIMEDOUT ? "timeout in " : "") + text;
}

// The text of the last failure on `comm`, which names the rank, its host and the cause. What comes
// after a failure that is final has its cause.
std::string error_text(const dlcoll_comm *comm, int code)
{
    dlcoll_error e = DLCOLL_ERROR_INIT;
    bool known = dlcoll_last_error(comm, &e) == 0 && e.code < 0 && e.text[0];
    if (known && e.code == code)
        return with_kind(code, e.text);
    if (known && comm && code == DLCOLL_ESTATE)
        return "the process group has failed before: " + with_kind(e.code, e.text);
    return with_kind(code, dlcoll_strerror(code));
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

// The tensors of a list reduced to a new one. They have one type and one size.
Tensor reduced_here(const Tensors &list, const c10d::ReduceOp &op)
{
    at::NoGradGuard no_grad;
    c10::InferenceMode no_mode(false);
    auto reduce = [&]() -> Tensor (*)(const Tensor &, const Tensor &) {
        switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
        case c10d::ReduceOp::SUM:
            return [](const Tensor &a, const Tensor &b) { return at::add(a, b); };
        case c10d::ReduceOp::PRODUCT:
            return at::mul;
        case c10d::ReduceOp::MIN:
            return at::minimum;
        case c10d::ReduceOp::MAX:
            return at::maximum;
        case c10d::ReduceOp::BAND:
            return at::bitwise_and;
        case c10d::ReduceOp::BOR:
            return at::bitwise_or;
        case c10d::ReduceOp::BXOR:
            return at::bitwise_xor;
        default:
            TORCH_CHECK(false, "dlcoll: a list of several tensors has no average, and no sum of "
                               "products with a factor");
        }
    }();
    Tensor all = list[0];
    for (size_t i = 1; i < list.size(); i++)
        all = reduce(all, list[i]);
    return all.contiguous();
}

} // namespace

#endif
