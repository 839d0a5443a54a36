"""Score candidates and choose among them: the compiled loops behind :mod:`lower_bound`.

Candidates stand side by side in SIMD lanes, so that each is scored by the same instructions in the same
order, wherever it stands, alone or in a batch: equal rows of ``phi`` get equal bits, and ties are ties. All
arithmetic on scores is in :func:`_score_block`, with the multiply-adds written out, so that no compiler pass
may fuse them in one instruction and not in another. Numba does not vectorise across such lanes by itself; hence the
LLVM instructions.

Where a task has one marginal, means (m, d), a candidate is a feature vector. Where it has K marginals, means (m, K, p),
the candidates are these, each with features of its own or all with the same. ``means.ndim`` is known when a loop is
compiled, and what the other case needs is not compiled then.

Covariances are packed upper triangles by columns: entry (i <= j) stands at j (j + 1) / 2 + i.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, no-any-return, call-arg, import-untyped"

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hieropo._kernels.jit import compiled, inlined
from hieropo._utils.ties import ROUNDING

WIDTH = 4
GROUPS = 3  # vectors in flight hide the latency of the multiply-add
LANES = WIDTH * GROUPS
AHEAD = 8  # requests
LINE = 8  # doubles in a cache line

_INT, _BYTE, _INDEX = ir.IntType(64), ir.IntType(8), ir.IntType(32)
_DOUBLE = ir.DoubleType()
_VECTOR = ir.VectorType(_DOUBLE, WIDTH)
_NAN = ir.Constant(_VECTOR, [float("nan")] * WIDTH)
_ZERO = ir.Constant(_VECTOR, [0.0] * WIDTH)


class _Vectors:
    """Instructions on vectors of WIDTH doubles, at one point of a function under construction."""

    def __init__(self, builder):
        self.builder = builder

    def splat(self, value):
        """Copy one double to every lane."""
        empty = ir.Constant(_VECTOR, ir.Undefined)
        first = self.builder.insert_element(empty, value, _INDEX(0))
        return self.builder.shuffle_vector(
            first, empty, ir.Constant(ir.VectorType(_INDEX, WIDTH), [0] * WIDTH)
        )

    def gather(self, pointers, offset):
        """Read one double a lane."""
        vector = ir.Constant(_VECTOR, ir.Undefined)
        for lane, pointer in enumerate(pointers):
            value = self.builder.load(self.builder.gep(pointer, [offset]))
            vector = self.builder.insert_element(vector, value, _INDEX(lane))
        return vector

    def load(self, data, offset):
        """Read the vector that starts ``offset`` doubles after ``data``."""
        value = self.builder.load(self._at(data, offset))
        value.align = 8
        return value

    def store(self, value, data, offset):
        """Write the vector that starts ``offset`` doubles after ``data``."""
        self.builder.store(value, self._at(data, offset)).align = 8

    def _at(self, data, offset):
        return self.builder.bitcast(self.builder.gep(data, [offset]), _VECTOR.as_pointer())

    def multiply_add(self, x, y, z):
        """``x y + z``, rounded once."""
        return self._call("llvm.fma", x, y, z)

    def add_product(self, x, y, variable):
        """``variable += x y``."""
        self.builder.store(self.multiply_add(x, y, self.builder.load(variable)), variable)

    def sqrt(self, x):
        """Square root; 0 below 0, which rounding can make of the variance of a singular covariance."""
        positive = self.builder.fcmp_ordered(">", x, _ZERO)
        return self._call("llvm.sqrt", self.builder.select(positive, x, _ZERO))

    def finite_or_nan(self, value, other):
        """``value``, or NaN where it or ``other`` is not finite."""
        both = self.builder.fadd(value, other)
        finite = self.builder.fcmp_ordered("==", self.builder.fsub(both, both), _ZERO)
        return self.builder.select(finite, value, _NAN)

    def _call(self, name, *args):
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(args))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"{name}.v{WIDTH}f64")
        return self.builder.call(function, args)


@intrinsic
def _prefetch(typingctx, address):
    """Ask for the cache line at ``address``."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _BYTE.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _INDEX, _INDEX, _INDEX])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = _INDEX(0), _INDEX(3), _INDEX(1)
        builder.call(function, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _lane_rows(builder, first, left, step):
    """Address for each lane, ``step`` doubles apart; the last one stands in for those that are missing."""
    last = builder.sub(left, _INT(1))
    lanes = (builder.select(builder.icmp_signed("<", _INT(k), last), _INT(k), last) for k in range(LANES))
    return [builder.gep(first, [builder.mul(lane, step)]) for lane in lanes]


def _shared(builder, data):
    """Read entry ``index`` of one array into all lanes, as a vector for each group."""
    v = _Vectors(builder)
    return lambda index: [v.splat(builder.load(builder.gep(data, [index])))] * GROUPS


def _per_lane(builder, pointers):
    """Read entry ``index`` of each lane's own array, as a vector for each group."""
    v = _Vectors(builder)
    return lambda index: [v.gather(pointers[g * WIDTH : (g + 1) * WIDTH], index) for g in range(GROUPS)]


def _zeros(builder):
    """Make a vector variable for each group, 0 whenever control passes this point."""
    variables = [cgutils.alloca_once(builder, _VECTOR) for _ in range(GROUPS)]
    for variable in variables:
        builder.store(_ZERO, variable)
    return variables


def _mean_and_variance(builder, d, features, mean, cov, block):
    """Per group the variables x' mean and x' cov x = sum_j x_j (2 sum_{i < j} cov_ij x_i + cov_jj x_j).

    ``features``, ``mean`` and ``cov`` read an entry for every lane; ``block`` takes the features.
    """
    v = _Vectors(builder)
    means, variances = _zeros(builder), _zeros(builder)
    column = cgutils.alloca_once(builder, _INT)
    builder.store(_INT(0), column)

    def offset(j, group):
        return builder.add(builder.mul(j, _INT(LANES)), _INT(group * WIDTH))

    with cgutils.for_range(builder, d) as loop:
        j = loop.index
        start = builder.load(column)
        sums = _zeros(builder)
        values = features(j)
        for g, x in enumerate(values):
            v.store(x, block, offset(j, g))
        with cgutils.for_range(builder, j) as above:
            i = above.index
            for g, (total, entry) in enumerate(zip(sums, cov(builder.add(start, i)), strict=True)):
                v.add_product(entry, v.load(block, offset(i, g)), total)
        operands = values, sums, means, variances, cov(builder.add(start, j)), mean(j)
        for x, total, mean_, variance, diagonal, slope in zip(*operands, strict=True):
            off = builder.load(total)
            v.add_product(x, v.multiply_add(diagonal, x, builder.fadd(off, off)), variance)
            v.add_product(slope, x, mean_)
        builder.store(builder.add(start, builder.add(j, _INT(1))), column)
    return means, variances


def _scoring(*, per_candidate):
    """Generate the instructions that score a block of candidates, of one marginal or each of its own."""

    def codegen(context, builder, signature, args):
        v = _Vectors(builder)
        phi, mean, cov = (builder.inttoptr(args[p], _DOUBLE.as_pointer()) for p in (0, 4, 5))
        step, left, d, pessimism, k, stride = (args[p] for p in (1, 2, 3, 6, 8, 9))
        work = context.make_array(signature.args[7])(context, builder, args[7]).data
        block = builder.gep(work, [builder.mul(stride, _INT(3))])
        features = _per_lane(builder, _lane_rows(builder, phi, left, step))
        if per_candidate:
            size = builder.sdiv(builder.mul(d, builder.add(d, _INT(1))), _INT(2))
            marginals = [
                _per_lane(builder, _lane_rows(builder, *marginal))
                for marginal in ((mean, left, d), (cov, left, size))
            ]
        else:
            marginals = [_shared(builder, marginal) for marginal in (mean, cov)]
        scores = _mean_and_variance(builder, d, features, *marginals, block)
        minus = v.splat(builder.fsub(_DOUBLE(-0.0), pessimism))
        for g, variables in enumerate(zip(*scores, strict=True)):
            mean_, variance = (builder.load(variable) for variable in variables)
            bound = v.finite_or_nan(v.multiply_add(minus, v.sqrt(variance), mean_), variance)
            for part, value in enumerate((bound, mean_, variance)):
                offset = builder.add(builder.mul(stride, _INT(part)), _INT(g * WIDTH))
                v.store(value, work, builder.add(k, offset))
        return context.get_dummy_value()

    return codegen


def _score_signature(work):
    index = types.int64
    return types.void(index, index, index, index, index, index, types.float64, work, index, index)


@intrinsic
def _score_block(typingctx, phi, step, left, d, mean, cov, pessimism, work, k, stride):
    """Score up to LANES candidates of one marginal: bounds to ``work[k:]``; means and variances ``stride`` further on.

    ``phi``, ``mean`` and ``cov`` are addresses; ``left`` candidates begin at ``phi``, ``step`` doubles apart. Where a
    score is not finite the bound is NaN. ``work[3 * stride:]`` takes the block's features, candidates side by side.
    """
    return _score_signature(work), _scoring(per_candidate=False)


@intrinsic
def _score_laws(typingctx, phi, step, left, d, mean, cov, pessimism, work, k, stride):
    """Score as :func:`_score_block`, where each candidate has a marginal of its own, one after the other."""
    return _score_signature(work), _scoring(per_candidate=True)


@compiled
def _score(means, phi, J, K, d, mean, cov, pessimism, work, stride):
    """Score K candidates, given the addresses of J feature vectors and of the marginals of one row of ``means``."""
    if means.ndim == 2:
        for k in range(0, K, LANES):
            _score_block(phi + 8 * k * d, d, K - k, d, mean, cov, pessimism, work, k, stride)
    else:
        step = d if J > 1 else 0
        size = d * (d + 1) // 2
        for k in range(0, K, LANES):
            mean_k, cov_k = mean + 8 * k * d, cov + 8 * k * size
            _score_laws(phi + 8 * k * step, step, K - k, d, mean_k, cov_k, pessimism, work, k, stride)


@inlined
def _candidates(means, J):
    """Count the candidates of a request with J feature vectors."""
    return J if means.ndim == 2 else means.shape[1]


@compiled
def score(means, covs, row, phi, pessimism, bound, mean, sd):
    """Score the candidates of one task with features ``phi`` (J, d)."""
    J, d = phi.shape
    K = _candidates(means, J)
    stride = (K + LANES - 1) // LANES * LANES
    work = np.empty(3 * stride + LANES * d)
    mean_at = np.int64(means.ctypes.data) + row * means.strides[0]
    cov_at = np.int64(covs.ctypes.data) + row * covs.strides[0]
    _score(means, np.int64(phi.ctypes.data), J, K, d, mean_at, cov_at, pessimism, work, stride)
    for k in range(K):
        bound[k] = work[k]
        mean[k] = work[stride + k]
        sd[k] = np.sqrt(max(work[2 * stride + k], 0.0))


@inlined
def _room(work, stride, k):
    """Return by how much a bound has to be above another one so as not to be equal to it; then the first wins."""
    return ROUNDING * (abs(work[k]) + abs(work[stride + k]))


@compiled
def _fetch(address, n):
    """Ask for n doubles."""
    for p in range(0, n, LINE):
        _prefetch(address + 8 * p)


@compiled
def choose(means, covs, prior_mean, prior_cov, rows, phi, eligible, pessimism, index, bound, mean, sd):
    """Rank the eligible candidates of each request; return the first request without a finite one, or -1.

    ``rows`` (n,) are rows of ``means`` and ``covs``, -1 for the prior; ``phi`` is (n, J, d); ``eligible`` is (n, K),
    or (0, 0) for all. ``index`` comes filled with -1, the other outputs with NaN, all (n, top).
    """
    n, J, d = phi.shape
    K = _candidates(means, J)
    mean_bytes, cov_bytes = means.strides[0], covs.strides[0]
    top = index.shape[1]
    stride = (K + LANES - 1) // LANES * LANES
    work = np.empty(3 * stride + LANES * d)
    masked = eligible.shape[0] > 0
    phi_at = np.int64(phi.ctypes.data)
    means_at, covs_at = np.int64(means.ctypes.data), np.int64(covs.ctypes.data)
    prior_mean_at, prior_cov_at = np.int64(prior_mean.ctypes.data), np.int64(prior_cov.ctypes.data)
    for r in range(n):
        if r + AHEAD < n:
            soon = max(rows[r + AHEAD], 0)
            _fetch(covs_at + soon * cov_bytes, cov_bytes // 8)
            _fetch(means_at + soon * mean_bytes, mean_bytes // 8)
        row = rows[r]
        mean_at = prior_mean_at if row < 0 else means_at + row * mean_bytes
        cov_at = prior_cov_at if row < 0 else covs_at + row * cov_bytes
        _score(means, phi_at + 8 * r * J * d, J, K, d, mean_at, cov_at, pessimism, work, stride)
        worst = -np.inf
        for k in range(K):
            value, room = work[k], _room(work, stride, k)
            if value <= worst + room or (masked and not eligible[r, k]):
                continue
            if not np.isfinite(value):
                return r
            rank = top - 1
            while rank > 0 and not value <= bound[r, rank - 1] + room:  # NaN stands where nothing is yet
                index[r, rank] = index[r, rank - 1]
                bound[r, rank] = bound[r, rank - 1]
                rank -= 1
            index[r, rank] = k
            bound[r, rank] = value
            if index[r, top - 1] >= 0:
                worst = bound[r, top - 1]
        if index[r, 0] < 0:
            return r
        for rank in range(min(top, K)):
            k = index[r, rank]
            if k >= 0:
                mean[r, rank] = work[stride + k]
                sd[r, rank] = np.sqrt(max(work[2 * stride + k], 0.0))
    return -1


@compiled
def choose_one(means, covs, row, phi, eligible, pessimism):
    """Index, bound, mean and sd of the best eligible candidate; index -1 where :func:`choose` would stop.

    ``phi`` is (J, d), ``eligible`` (K,), or (0,) for all.
    """
    J, d = phi.shape
    K = _candidates(means, J)
    stride = (K + LANES - 1) // LANES * LANES
    work = np.empty(3 * stride + LANES * d)
    mean_at = np.int64(means.ctypes.data) + row * means.strides[0]
    cov_at = np.int64(covs.ctypes.data) + row * covs.strides[0]
    _score(means, np.int64(phi.ctypes.data), J, K, d, mean_at, cov_at, pessimism, work, stride)
    masked = eligible.size > 0
    index, bound = -1, -np.inf
    for k in range(K):
        if work[k] <= bound + _room(work, stride, k) or (masked and not eligible[k]):
            continue
        index, bound = k, work[k]
        if not np.isfinite(bound):
            index = -1
            break
    best = max(index, 0)
    return index, bound, work[stride + best], np.sqrt(max(work[2 * stride + best], 0.0))


@compiled
def count_wins(thetas, phi, eligible, wins):
    """Add up for how many thetas (S, d) each eligible row of ``phi`` (K, d) has the largest product.

    Ties go to the first. Returns whether every theta had a winner and every product was finite.
    """
    for s in range(thetas.shape[0]):
        best, winner = -np.inf, -1
        for k in range(phi.shape[0]):
            if eligible[k]:
                value = 0.0
                for j in range(phi.shape[1]):
                    value += thetas[s, j] * phi[k, j]
                if not np.isfinite(value):
                    return False
                if value > best:
                    best, winner = value, k
        if winner < 0:
            return False
        wins[winner] += 1
    return True
