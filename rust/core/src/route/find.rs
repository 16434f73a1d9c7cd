//! Find: seven steps, the first that yields a route ends the search (R11 to R17).

use std::ops::Range;

use super::choose::Candidates;
use super::decide::{PassContext, Query};
use super::index::{Entry, RouteIndex};
use super::pick::{Choice, PendingRequest};
use crate::ids::Guid;

/// What the seven steps yield.
#[derive(Debug)]
pub(crate) enum Found {
    /// Routes of one service name and one broker id, or none: their places in the order of the index, expired ones among them.
    Routes { step: i8, rows: Range<usize>, broker: Option<Guid> },
    /// As if there were a LOCAL route for the service (R16).
    Implied { step: i8 },
    /// Routing information is requested, or waited for (R14).
    Request,
    /// No step yields a route (R17).
    Nothing,
}

impl RouteIndex {
    pub(crate) fn find(&self, query: &Query<'_>, context: &PassContext<'_>, room: &mut Candidates) -> Found {
        let table = &self.tables[usize::from(context.table)];
        let live = |rows: &Range<usize>| rows.clone().any(|place| self.route(place).is_live(context.now));
        if let Some(number) = self.entry(context.table, query.name) {
            let entry = &self.entries[number as usize];
            if let Some(broker) = query.broker {
                let rows = self.rows_with(entry, Some(broker));
                if live(&rows) {
                    return Found::Routes { step: 1, rows, broker: Some(broker) };
                }
            }
            let rows = self.rows_with(entry, None);
            if live(&rows) {
                return Found::Routes { step: 2, rows, broker: None };
            }
            let picked = if query.broker.is_none() { self.pick_broker(number, context, room) } else { None };
            if let Some(broker) = picked {
                return Found::Routes { step: 3, rows: self.rows_with(entry, Some(broker)), broker: Some(broker) };
            }
        }
        if context.now < table.dynamic_until && self.asks_for_route(query) {
            return Found::Request;
        }
        if !room.tails.get(self, context.table, context.now).is_empty() {
            return Found::Routes { step: 5, rows: table.wildcards.clone(), broker: None };
        }
        if query.broker.is_some() && !self.hosts_of(context.service).is_empty() {
            return Found::Implied { step: 6 };
        }
        Found::Nothing
    }

    /// The routes of an entry with this broker id, or with none.
    pub(crate) fn rows_with(&self, entry: &Entry, broker: Option<Guid>) -> Range<usize> {
        let rows = entry.rows();
        let order = &self.order[rows.clone()];
        let broker_of = |row: &u32| self.catalog.routes[*row as usize].broker;
        let start = order.partition_point(|row| broker_of(row) < broker);
        let end = order.partition_point(|row| broker_of(row) <= broker);
        rows.start + start..rows.start + end
    }

    /// R14: whether a live route to the dynamic routing service delays the conversation.
    fn asks_for_route(&self, query: &Query<'_>) -> bool {
        self.options.pending_request == PendingRequest::Delay || !self.catalog.is_pending(query.name)
    }

    /// R13: one of the broker ids of the live routes, which stand by their lowest live route id (K19).
    fn pick_broker(&self, entry: u32, context: &PassContext<'_>, room: &mut Candidates) -> Option<Guid> {
        self.live_brokers(entry, context.now, room);
        let count = room.brokers.len();
        (count > 0).then(|| room.brokers[context.picker.pick(Choice::Broker, entry as usize, count)].1)
    }

    /// Leaves the broker ids of the live routes, with their lowest route ids, in `room.brokers`.
    pub(crate) fn live_brokers(&self, entry: u32, now: i64, room: &mut Candidates) {
        room.brokers.clear();
        // The rows of an entry stand by broker id and then by route id.
        for place in self.entries[entry as usize].rows() {
            let route = self.route(place);
            let Some(broker) = route.broker.filter(|_| route.is_live(now)) else { continue };
            if room.brokers.last().is_none_or(|&(_, last)| last != broker) {
                room.brokers.push((route.route_id, broker));
            }
        }
        room.brokers.sort_unstable();
    }
}
