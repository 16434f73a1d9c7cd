//! Choose: one of the routes that were found (R21 to R26).

use super::decide::{PassContext, Query};
use super::find::Found;
use super::index::RouteIndex;
use super::pick::Choice;
use super::revise::Revisions;
use super::tail::Tails;
use crate::catalog::{LOCAL, NONE, RouteRow, TRANSPORT};
use crate::ids::Guid;
use crate::outcome::Reason;

/// The classes of R22, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Mirror = 0,
    Local = 1,
    Network = 2,
    Transport = 3,
}

pub(crate) const CLASSES: [Class; 4] = [Class::Mirror, Class::Local, Class::Network, Class::Transport];

/// The route that was chosen.
#[derive(Debug)]
pub(crate) enum Chosen {
    /// Its address is LOCAL, and this database takes the message; no route if it is the implied one.
    Local { route: Option<u32>, database: u16 },
    /// Its address is a network address or TRANSPORT.
    Address { route: u32 },
    /// No class has a usable route (R26).
    None { reason: Reason },
}

/// Room for candidates, used again from one conversation to the next, and what is remembered of the routes that are alive. It is for
/// conversations of one index.
#[derive(Debug, Default)]
pub struct Candidates {
    pub(crate) rows: Vec<u32>,
    pub(crate) brokers: Vec<(i32, Guid)>,
    pub(crate) tails: Tails,
    pub(crate) revisions: Revisions,
}

impl Class {
    pub(crate) fn of(route: &RouteRow) -> Self {
        match route.endpoint {
            _ if route.mirror != NONE => Self::Mirror,
            LOCAL => Self::Local,
            TRANSPORT => Self::Transport,
            _ => Self::Network,
        }
    }
}

impl RouteIndex {
    pub(crate) fn choose(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        found: &Found,
        room: &mut Candidates,
    ) -> Chosen {
        let Found::Routes { rows, broker, .. } = found else {
            return match self.locate(query, context, None) {
                Some(database) => Chosen::Local { route: None, database },
                None => Chosen::None { reason: Reason::ServiceNotFound },
            };
        };
        let mut has_local = false;
        for class in CLASSES {
            self.candidates(query, context, found, class, room, &mut has_local);
            if room.rows.is_empty() {
                continue;
            }
            let turn = rows.start * CLASSES.len() + class as usize;
            let row = room.rows[context.picker.pick(Choice::Route, turn, room.rows.len())];
            if self.row(row).endpoint != LOCAL {
                return Chosen::Address { route: row };
            }
            if let Some(database) = self.locate(query, context, *broker) {
                return Chosen::Local { route: Some(row), database };
            }
        }
        let reason = if has_local { Reason::ServiceNotFound } else { Reason::AddressUnusable };
        Chosen::None { reason }
    }

    /// Leaves the usable routes of a class in `room.rows`, and says whether one of the class is LOCAL.
    fn candidates(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        found: &Found,
        class: Class,
        room: &mut Candidates,
        has_local: &mut bool,
    ) {
        let Candidates { rows: into, tails, .. } = room;
        into.clear();
        match found {
            Found::Routes { step: 5, .. } => {
                into.extend_from_slice(&tails.get(self, context.table, context.now).classes[class as usize]);
            }
            Found::Routes { rows, .. } => {
                let live = self.order[rows.clone()].iter().copied().filter(|&row| self.row(row).is_live(context.now));
                into.extend(live.filter(|&row| Class::of(self.row(row)) == class));
                self.merge(into);
            }
            Found::Implied { .. } | Found::Request | Found::Nothing => {}
        }
        *has_local |= into.iter().any(|&row| self.row(row).endpoint == LOCAL);
        if class != Class::Network {
            into.retain(|&row| self.is_usable(query, context, self.row(row)));
        }
    }

    /// Whether a route leads anywhere for this conversation (K13).
    pub(crate) fn is_usable(&self, query: &Query<'_>, context: &PassContext<'_>, route: &RouteRow) -> bool {
        match route.endpoint {
            LOCAL => self.can_locate(query, context, route.broker),
            TRANSPORT => self.next_hop(query, route).is_some(),
            _ => true,
        }
    }

    /// Keeps one of the rows with the same address (R21): rows come by route id, and the lowest stands for all.
    pub(crate) fn merge(&self, rows: &mut Vec<u32>) {
        if rows.len() > 1 {
            rows.sort_by_key(|&row| self.row(row).endpoint);
            rows.dedup_by_key(|row| self.row(*row).endpoint);
            rows.sort_by_key(|&row| self.row(row).route_id);
        }
    }

    pub(crate) fn row(&self, row: u32) -> &RouteRow {
        &self.catalog.routes[row as usize]
    }
}
