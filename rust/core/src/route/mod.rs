//! Routing: find the matching routes, choose one, and if its address is LOCAL, locate the target service (R4).
//!
//! ```text
//!            ┌ table ─► find (seven steps) ─► choose (four classes) ─► locate ┐
//! decide ────┤                                                               ├──► Decision
//!            └ again, as if from another instance, if the next hop is this instance (R41)
//! ```
//! [`RouteIndex::resolve`] gives the same answers for blocks of conversations, and leaves uncommon cases to `decide`.

mod batch;
mod bloom_filter;
mod compile;
#[cfg(test)]
#[allow(clippy::expect_used)]
mod compile_tests;
mod decide;
mod decision_table;
mod expiry;
mod explain;
mod index;
mod perfect_hash;
mod service_databases;
mod table_rows;
mod tie_break;

pub use batch::{Answers, BLOCK, Block, Stages};
pub use decide::{Decision, NextHop, Outcome, Query, Reason, ResolvedHop, Scratch};
pub use decision_table::Source;
pub use explain::{ClassTrace, Explanation, HostTrace, LocateTrace, Mismatch, Origin, Pass, RouteRef, StepTrace};
pub use index::{Options, PendingRequest, RouteIndex};
pub use table_rows::{Decided, TableRow};
pub use tie_break::TieBreak;
