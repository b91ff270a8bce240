#include "optim/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "core/trace.h"
#include "ops/reduce.h"

namespace octet {

std::vector<RowRange> deal_rows(int64_t rows, int64_t row_elements, std::vector<int64_t>& elements) {
  constexpr int64_t group_rows = 128;
  const auto shards = static_cast<int64_t>(elements.size());
  const int64_t groups = (rows + group_rows - 1) / group_rows, each = groups / shards, more = groups % shards;
  std::vector<size_t> poorest(elements.size());
  std::iota(poorest.begin(), poorest.end(), size_t{0});
  std::stable_sort(poorest.begin(), poorest.end(), [&](size_t a, size_t b) { return elements[a] < elements[b]; });
  std::vector<bool> extra(elements.size());
  for (int64_t i = 0; i < more; ++i) extra[poorest[static_cast<size_t>(i)]] = true;
  std::vector<RowRange> ranges;
  int64_t group = 0;
  for (size_t s = 0; s < elements.size(); ++s) {
    const int64_t end = group + each + (extra[s] ? 1 : 0), first = std::min(group * group_rows, rows);
    ranges.push_back({first, std::min(end * group_rows, rows) - first});
    elements[s] += ranges.back().count * row_elements;
    group = end;
  }
  return ranges;
}

DataParallel::DataParallel(const Mesh& mesh, const ParallelConfig& config, Model& model, QuantRegistry& quant)
    : mesh_(mesh), model_(model), partial_(mesh, model.params()), zero_(mesh.layout().shards > 1 ? static_cast<int>(config.zero) : 0), overlap_(config.overlap) {
  const size_t units = model.units().size();
  sums_.resize(units);
  gathers_.resize(units);
  stale_.assign(units, false);
  counted_.assign(units, false);
  added_.assign(units, false);
  lent_to_.fill(-1);
  holds_.fill(-1);
  // What ranks of tp have copies of is dealt by itself: alike on all of them, whose parts of the rest may differ in size.
  std::vector<int64_t> elements(static_cast<size_t>(mesh.layout().shards)), of_copies = elements;
  for (const auto& p : model.params()) {
    const std::vector<RowRange> ranges = deal_rows(p->shape[0], p->row_elements(), p->copies > 1 ? of_copies : elements);
    p->own = ranges[static_cast<size_t>(mesh.layout().shard)];
    Pieces& pieces = pieces_[p.get()];
    pieces.begin.push_back(0);
    for (const RowRange& r : ranges) pieces.begin.push_back((r.first + r.count) * p->row_elements());
  }
  if (config.fp8_param_gather && mesh.shards()) codes_.emplace(mesh, model, pieces_, quant);
}

void DataParallel::allocate(Arena& arena) {
  if (codes_) codes_->allocate(arena);
}

DataParallel::~DataParallel() {
  if (alone() || std::uncaught_exceptions() > 0) return;
  try {
    for (size_t unit = 0; unit < gathers_.size(); ++unit) wait_for_weights(unit);
  } catch (const std::exception&) {   // the group has lost a member, and says so where it is used
  }
}

void DataParallel::wait_for_weights(size_t unit) {
  for (const Comm::Ticket ticket : std::exchange(gathers_[unit], {})) mesh_.shards()->wait(ticket);
}

void DataParallel::plan(const Work& work) {
  if (!codes_) return;
  codes_->exchange_maxima(work.weights, work.quant);
  std::map<Dtype, std::vector<TensorInPieces>> unused;
  for (size_t unit = 0; unit < gathers_.size(); ++unit) codes_->quantize(work.weights, work.quant, unit, true, unused);
}

void DataParallel::begin_step() { std::fill(added_.begin(), added_.end(), false); }

void DataParallel::start_sum(const Unit& unit, Tickets& tickets) {
  if (unit.params.empty() || !sum_group()) return;
  Comm& group = *sum_group();
  std::vector<TensorInPieces> in_pieces;
  std::vector<Tensor> whole;
  for (const Param* p : unit.params) {
    if (mesh_.shards()) in_pieces.push_back({p->grad, pieces_.at(p)});
    else whole.push_back(p->grad);
  }
  tickets.push_back(mesh_.shards() ? group.reduce_scatter(in_pieces) : group.all_reduce(whole, Reduce::sum));
  if (!overlap_) group.wait(tickets.back());
}

// Takes over the own rows of what the slot's last unit sent off, and frees the slot.
void DataParallel::settle(Ctx& ctx, int slot) {
  const int unit = std::exchange(lent_to_[static_cast<size_t>(slot)], -1);
  if (unit < 0) return;
  const auto u = static_cast<size_t>(unit);
  Span span(ctx.tracer, "gradients", "settle");
  for (const Comm::Ticket ticket : std::exchange(sums_[u], {})) mesh_.shards()->wait(ticket);
  for (const Param* p : model_.units()[u].params) {
    if (p->own_elements() == 0) continue;
    if (added_[u]) ops::add(ctx, p->own_part(p->grad), p->own_grad);
    else ops::copy(ctx, p->own_part(p->grad), p->own_grad);
  }
  added_[u] = true;
  if (mesh_.replicas() && lent_last_[static_cast<size_t>(slot)]) start_replica_sum(u);
}

// Of a unit whose sums over the shards are done.
void DataParallel::start_replica_sum(size_t unit) {
  std::vector<Tensor> own;
  for (const Param* p : model_.units()[unit].params) own.push_back(p->own_grad);
  if (own.empty()) return;
  replica_sum_ = mesh_.replicas()->all_reduce(own, Reduce::sum);
  if (!overlap_) mesh_.replicas()->wait(replica_sum_);
}

// Sums over the replicas follow those over the shards, as far as those are done or `keep` younger ones are under way.
void DataParallel::follow_up(size_t keep) {
  while (unfinished_.size() > keep) {
    const size_t unit = unfinished_.front();
    unfinished_.erase(unfinished_.begin());
    for (const Comm::Ticket ticket : std::exchange(sums_[unit], {})) mesh_.shards()->wait(ticket);
    start_replica_sum(unit);
  }
}

void DataParallel::finish_gradients(Ctx& ctx) {
  if (alone()) return;
  {
    Span span(ctx.tracer, "gradients", "wait");
    for (int slot = 0; slot < unit_slots; ++slot) settle(ctx, slot);
    follow_up(0);
    for (Tickets& tickets : sums_) {
      for (const Comm::Ticket ticket : std::exchange(tickets, {})) sum_group()->wait(ticket);
    }
    if (replica_sum_) mesh_.replicas()->wait(std::exchange(replica_sum_, 0));
  }
  partial_.sum(ctx.tracer);
}

void DataParallel::start_gather(const Work& work, size_t unit) {
  if (!mesh_.shards()) return;
  int& held = holds_[static_cast<size_t>(model_.units()[unit].slot)];
  if (lends_weights() && held >= 0) wait_for_weights(static_cast<size_t>(held));   // came for nothing, and still writes there
  if (codes_ && std::exchange(maxima_are_old_, false)) codes_->exchange_maxima(work.weights, work.quant);
  std::map<Dtype, std::vector<TensorInPieces>> of_type;
  for (const Param* p : model_.units()[unit].params) {
    if (p->by_codes) continue;
    if (lends_weights() && p->own_elements() > 0) ops::copy(work.ctx, p->own_working, p->own_part(p->working));
    of_type[p->working.dtype].push_back({p->working, pieces_.at(p)});
  }
  if (codes_) codes_->quantize(work.weights, work.quant, unit, counted_[unit], of_type);
  for (const auto& [dtype, tensors] : of_type) {
    gathers_[unit].push_back(mesh_.shards()->all_gather(tensors));
    if (!overlap_) mesh_.shards()->wait(gathers_[unit].back());
  }
  if (lends_weights()) held = static_cast<int>(unit);
}

void DataParallel::weights_changed(const Work& work, bool gather) {
  if (alone()) return;
  for (size_t unit = 0; unit < gathers_.size(); ++unit) wait_for_weights(unit);
  holds_.fill(-1);
  std::fill(stale_.begin(), stale_.end(), true);
  std::fill(counted_.begin(), counted_.end(), false);
  maxima_are_old_ = true;
  if (!gather || lends_weights() || !overlap_) return;
  for (size_t unit = 0; unit < gathers_.size(); ++unit) start_gather(work, unit);   // all have memory of their own
}

void DataParallel::use_weights(const Work& work, size_t unit) {
  const auto slot = static_cast<size_t>(model_.units()[unit].slot);
  const bool there = lends_weights() ? holds_[slot] == static_cast<int>(unit) : !stale_[unit] || !gathers_[unit].empty();
  if (!there) start_gather(work, unit);
  if (gathers_[unit].empty() && !stale_[unit]) return;
  wait_for_weights(unit);
  for (Linear* l : model_.units()[unit].linears) l->refresh_images(work.weights, work.quant, false, counted_[unit]);
  stale_[unit] = false;
  counted_[unit] = true;
}

// Weights that are lent: those of the unit that comes next, into memory that this one does not need.
void DataParallel::prefetch(const Work& work, size_t unit, std::optional<size_t> next) {
  if (!lends_weights() || !overlap_ || !next) return;
  const int slot = model_.units()[*next].slot;
  if (slot != model_.units()[unit].slot && holds_[static_cast<size_t>(slot)] != static_cast<int>(*next)) start_gather(work, *next);
}

UnitHooks DataParallel::evaluation_hooks(const Work& work) {
  if (alone()) return {};
  return {[this, work](size_t unit, std::optional<size_t> next) {
            use_weights(work, unit);
            prefetch(work, unit, next);
          },
          {},
          {}};
}

UnitHooks DataParallel::training_hooks(const Work& work, bool last) {
  UnitHooks hooks = evaluation_hooks(work);
  if (alone()) return hooks;
  hooks.backward = [this, work](size_t unit) {
    if (!lends_gradients()) return;
    settle(work.ctx, model_.units()[unit].slot);
    model_.zero_gradients(work.ctx, model_.units()[unit]);
  };
  hooks.gradients = [this, last](size_t unit) {
    if (!last && !lends_gradients()) return;
    start_sum(model_.units()[unit], sums_[unit]);
    const auto slot = static_cast<size_t>(model_.units()[unit].slot);
    if (lends_gradients()) {
      lent_to_[slot] = static_cast<int>(unit);
      lent_last_[slot] = last;
    } else if (mesh_.shards() && mesh_.replicas()) {
      unfinished_.push_back(unit);
      follow_up(1);
    }
  };
  return hooks;
}

void DataParallel::sum_scalars(double* loss_sums, double* squares, QuantRegistry& quant) {
  const Tensor losses{loss_sums, Dtype::f64, {2}}, all_squares{squares, Dtype::f64, {static_cast<int64_t>(model_.params().size())}};
  if (mesh_.shards()) mesh_.shards()->wait(mesh_.shards()->all_reduce(all_squares, Reduce::sum));
  // Ranks of tp have the same losses, parts of the squares, and parts of what quantizers saw or all of it.
  for (const auto& [group, sums] : {std::pair{mesh_.shards(), losses}, {mesh_.replicas(), losses}, {mesh_.tp(), all_squares}}) {
    if (!group) continue;
    Comm::Ticket last = group->all_reduce(sums, Reduce::sum);
    if (quant.sites() > 0) {
      group->all_reduce(quant.staged_amax(), Reduce::max);
      last = group->all_reduce(quant.staged_nonfinite(), Reduce::sum);
    }
    group->wait(last);
  }
}

void DataParallel::prove(const Work& work, Machine& machine) {
  if (alone()) return;
  prove_sums(work, machine);
  prove_copies(work, machine);
  if (mesh_.shards()) prove_gathers(work, machine);
}

namespace {

// Element e of a rank's mark is 2^(rank mod 16) when it is the rank's, else 0: the sum over ranks says which ones are in it, and how often.
constexpr int marks_an_element = 16;
float mark(int rank, int64_t e) { return rank / marks_an_element == e ? static_cast<float>(1 << rank % marks_an_element) : 0.0f; }

// What the weights of a shard look like in the proof; exact in BF16.
float weight_mark(size_t unit, size_t param, int shard) { return static_cast<float>(1 + (31 * unit + 7 * param + static_cast<size_t>(shard)) % 251); }

}  // namespace

void DataParallel::prove_sums(const Work& work, Machine& machine) {
  const Layout& l = mesh_.layout();
  const int ranks = l.dp() * l.tp;
  const auto number = [&](int tp_rank, int dp_rank) { return dp_rank * l.tp + tp_rank; };
  // Of a piece that has fewer elements than the marks, the first ranks' marks.
  const auto marked = [&](const Param& p, int shard) { return std::min<int64_t>(pieces_.at(&p).count(shard), (ranks + marks_an_element - 1) / marks_an_element); };
  begin_step();
  const UnitHooks hooks = training_hooks(work, true);
  for (size_t u = model_.units().size(); u-- > 0;) {
    hooks.backward(u);
    for (const Param* p : model_.units()[u].params) {
      ops::zero(work.ctx, p->grad);
      for (int s = 0; s < l.shards; ++s) {
        for (int64_t e = 0; e < marked(*p, s); ++e) {
          const float value = mark(number(l.tp_rank, l.dp_rank()), e);
          machine.copy_in(p->grad.as<float>() + pieces_.at(p).first(s) + e, &value, sizeof value);
        }
      }
    }
    hooks.gradients(u);
  }
  finish_gradients(work.ctx);
  for (const auto& p : model_.params()) {
    // Of tp: this rank alone, or all that have addends.
    const bool addends = p->tp_gradient != TpGradient::complete;
    const int first = addends ? l.tp_rank - p->copy : l.tp_rank, end = addends ? first + p->copies : first + 1;
    for (int64_t e = 0; e < marked(*p, l.shard); ++e) {
      float sum = 0, all = 0;
      for (int dp_rank = 0; dp_rank < l.dp(); ++dp_rank) {
        for (int tp_rank = first; tp_rank < end; ++tp_rank) all += mark(number(tp_rank, dp_rank), e);
      }
      machine.copy_out(&sum, p->own_grad.as<float>() + e, sizeof sum);
      OCTET_CHECK(sum == all, "the gradient of {} is summed over other ranks than the {} data-parallel ones{}: marks {:x} instead of {:x}", p->name, l.dp(),
                  addends ? fmt::format(" and {} of tp", p->copies) : "", static_cast<int64_t>(sum), static_cast<int64_t>(all));
    }
    ops::zero(work.ctx, p->grad);
    ops::zero(work.ctx, p->own_grad);
  }
}

// The gradient of a key/value head that several ranks have is summed on the way (Linear::sum_copies), over neighbours of tp: their marks must be in a sum of that group. In memory of some gradient.
void DataParallel::prove_copies(const Work& work, Machine& machine) {
  if (!mesh_.kv()) return;
  const Layout& l = mesh_.layout();
  const int first = l.tp_rank - l.tp_rank % l.kv_copies;
  const Tensor x{model_.params().front()->grad.data, Dtype::f32, {(l.tp + marks_an_element - 1) / marks_an_element}};
  machine.write(x, [&](const Tensor& host) {
    for (int64_t e = 0; e < host.elements(); ++e) host.as<float>()[e] = mark(l.tp_rank, e);
  });
  mesh_.kv()->wait(mesh_.kv()->all_reduce(x, Reduce::sum));
  machine.read(x, [&](const Tensor& host) {
    for (int64_t e = 0; e < host.elements(); ++e) {
      float all = 0;
      for (int r = first; r < first + l.kv_copies; ++r) all += mark(r, e);
      OCTET_CHECK(host.as<float>()[e] == all, "the gradient of a key/value head is summed over other ranks than the {} of tp that have it", l.kv_copies);
    }
  });
  ops::zero(work.ctx, x);
}

// Each shard marks its first element; a traversal forward and back must meet all marks of a unit whenever it uses it.
void DataParallel::prove_gathers(const Work& work, Machine& machine) {
  const std::vector<Unit>& units = model_.units();
  const auto poke = [&](const Tensor& t, int64_t element, float& value) {   // exchanges an element and `value`
    char* at = static_cast<char*>(t.data) + static_cast<size_t>(element) * size_bytes(t.dtype);
    float old = 0;
    if (t.dtype == Dtype::bf16) {
      bf16 narrow{}, given = to_bf16(value);
      machine.copy_out(&narrow, at, sizeof narrow);
      machine.copy_in(at, &given, sizeof given);
      old = to_float(narrow);
    } else {
      machine.copy_out(&old, at, sizeof old);
      machine.copy_in(at, &value, sizeof value);
    }
    value = old;
  };
  const auto peek = [&](const Tensor& t, int64_t element) {
    float value = 0;
    poke(t, element, value);
    const float found = value;
    poke(t, element, value);
    return found;
  };
  std::vector<std::vector<float>> kept(units.size());
  const auto exchange_marks = [&] {
    for (size_t u = 0; u < units.size(); ++u) {
      kept[u].resize(units[u].params.size());
      for (size_t i = 0; i < units[u].params.size(); ++i) {
        if (units[u].params[i]->own_elements() > 0) poke(units[u].params[i]->own_working, 0, kept[u][i]);
      }
    }
  };
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t i = 0; i < units[u].params.size(); ++i) kept[u].push_back(weight_mark(u, i, mesh_.layout().shard));
  }
  exchange_marks();
  weights_changed(work, true);
  const UnitHooks hooks = evaluation_hooks(work);
  std::vector<size_t> way;
  for (size_t u = 0; u < units.size(); ++u) way.push_back(u);
  for (size_t u = units.size(); u-- > 0;) way.push_back(u);
  for (size_t k = 0; k < way.size(); ++k) {
    hooks.weights(way[k], k + 1 < way.size() ? std::optional(way[k + 1]) : std::nullopt);
    const Unit& unit = units[way[k]];
    if (codes_) codes_->prove(way[k], machine);
    for (size_t i = 0; i < unit.params.size(); ++i) {
      const Param& p = *unit.params[i];
      if (p.by_codes) continue;
      for (int s = 0; s < mesh_.layout().shards; ++s) {
        if (pieces_.at(&p).count(s) == 0) continue;
        const float found = peek(p.working, pieces_.at(&p).first(s)), mark = weight_mark(way[k], i, s);
        OCTET_CHECK(found == mark, "the weights of {} that shard {} keeps did not come: {} instead of {}", p.name, s, found, mark);
      }
    }
  }
  exchange_marks();
  weights_changed(work, false);
}

}  // namespace octet
