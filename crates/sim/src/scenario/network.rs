//! Messages in flight between members, and what is cut or held.
//!
//! Messages leave in the order they were sent and stay in flight until a command
//! delivers them. A cut loses what is sent over it, a hold keeps it aside.

use quorate_core::{Envelope, MemberId};

use super::message::{KINDS, kind, kind_named};
use super::words::{LineWords, Parsed, member_list, number, unknown};

/// Which messages: `m1 -> m2 Vote`, `m1,m2 <-> *`, `Append first`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    /// An empty list means all members.
    from: Vec<MemberId>,
    to: Vec<MemberId>,
    both_ways: bool,
    kinds: Vec<&'static str>,
    pick: Pick,
}

/// How many of the messages that match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pick {
    #[default]
    All,
    First(usize),
    Last(usize),
}

impl Filter {
    /// Reads the rest of the line.
    pub(super) fn parse(words: &mut LineWords) -> Parsed<Self> {
        let mut filter = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "first" => filter.pick = Pick::First(count(words)?),
                "last" => filter.pick = Pick::Last(count(words)?),
                _ => match arrow(&word, words)? {
                    Some(arrow) => (filter.from, filter.both_ways, filter.to) = arrow,
                    None if word.starts_with(|c: char| c.is_ascii_uppercase()) => {
                        filter.kinds.push(kind_named(&word)?);
                    }
                    None => return unknown("filter", &word, &known()),
                },
            }
        }
        Ok(filter)
    }

    /// Nothing is said: everything matches.
    pub(super) fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Only some of the messages that match are meant: the first, or the last.
    pub(super) fn picks(&self) -> bool {
        self.pick != Pick::All
    }

    pub(super) fn names_a_link(&self) -> bool {
        !(self.from.is_empty() && self.to.is_empty())
    }

    pub(super) fn members(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.from.iter().chain(&self.to).copied()
    }

    pub(super) fn between(from: &[MemberId], to: &[MemberId]) -> Self {
        Self { from: from.to_vec(), to: to.to_vec(), both_ways: true, ..Self::default() }
    }

    pub(super) fn matches(&self, envelope: &Envelope) -> bool {
        let one_way = |from, to| named(&self.from, from) && named(&self.to, to);
        let on_link = one_way(envelope.from, envelope.to)
            || (self.both_ways && one_way(envelope.to, envelope.from));
        on_link && (self.kinds.is_empty() || self.kinds.contains(&kind(&envelope.message)))
    }

    /// The places in `messages` that this filter picks.
    fn places(&self, messages: &[Envelope]) -> Vec<usize> {
        let all: Vec<usize> =
            (0..messages.len()).filter(|at| self.matches(&messages[*at])).collect();
        match self.pick {
            Pick::All => all,
            Pick::First(count) => all.into_iter().take(count).collect(),
            Pick::Last(count) => all[all.len().saturating_sub(count)..].to_vec(),
        }
    }
}

type Arrow = (Vec<MemberId>, bool, Vec<MemberId>);

/// `m1->m2`, `m1 -> m2`, `m1 <-> *`, in one word or three.
pub(super) fn arrow(word: &str, words: &mut LineWords) -> Parsed<Option<Arrow>> {
    let three = matches!(words.peek(), Some("->" | "<->"));
    let whole = if three {
        let arrow = words.expect_word("an arrow")?;
        format!("{word}{arrow}{}", words.expect_word("a member after the arrow")?)
    } else {
        word.to_owned()
    };
    let Some((from, to)) = whole.split_once("->") else { return Ok(None) };
    let (from, both_ways) = match from.strip_suffix('<') {
        Some(from) => (from, true),
        None => (from, false),
    };
    let list = |side: &str| if side == "*" { Ok(Vec::new()) } else { member_list(side) };
    Ok(Some((list(from)?, both_ways, list(to)?)))
}

fn count(words: &mut LineWords) -> Parsed<usize> {
    match words.peek().and_then(|word| number(word).ok()) {
        Some(count) => {
            words.next();
            Ok(count)
        }
        None => Ok(1),
    }
}

fn known() -> Vec<&'static str> {
    let mut known = vec!["m1->m2", "m1<->m2", "*->m2", "first", "last"];
    known.extend(KINDS);
    known
}

fn named(list: &[MemberId], id: MemberId) -> bool {
    list.is_empty() || list.contains(&id)
}

/// The wires between members.
#[derive(Clone, Debug, Default)]
pub(super) struct StoryNetwork {
    flight: Vec<Envelope>,
    held: Vec<Envelope>,
    cuts: Vec<Filter>,
    holds: Vec<Filter>,
}

/// What happened to a message when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    InFlight,
    Held,
    Lost,
}

impl StoryNetwork {
    pub(super) fn send(&mut self, envelope: Envelope) -> SendResult {
        if self.cuts.iter().any(|cut| cut.matches(&envelope)) {
            return SendResult::Lost;
        }
        if self.holds.iter().any(|hold| hold.matches(&envelope)) {
            self.held.push(envelope);
            return SendResult::Held;
        }
        self.flight.push(envelope);
        SendResult::InFlight
    }

    pub(super) fn flight(&self) -> &[Envelope] {
        &self.flight
    }

    pub(super) fn held(&self) -> &[Envelope] {
        &self.held
    }

    pub(super) fn next(&mut self) -> Option<Envelope> {
        if self.flight.is_empty() { None } else { Some(self.flight.remove(0)) }
    }

    /// Takes the chosen messages out of flight.
    pub(super) fn take(&mut self, filter: &Filter) -> Vec<Envelope> {
        take(&mut self.flight, filter)
    }

    /// Takes messages to a member that has gone.
    pub(super) fn take_to(&mut self, to: MemberId) -> Vec<Envelope> {
        let (gone, kept) = self.flight.drain(..).partition(|envelope| envelope.to == to);
        self.flight = kept;
        gone
    }

    /// From now on the chosen messages are lost; so are those in flight.
    pub(super) fn cut(&mut self, filter: Filter) -> Vec<Envelope> {
        let lost = self.take(&filter);
        self.cuts.push(filter);
        lost
    }

    /// Ends these cuts, or all. False when there was no such cut.
    pub(super) fn heal(&mut self, filter: &Filter) -> bool {
        end_rules(&mut self.cuts, filter) || filter.is_everything()
    }

    /// Keeps the chosen messages aside. Unless some were picked from those in
    /// flight, the same goes for all like them that are sent from now on.
    /// False when some were to be picked and there was none.
    pub(super) fn hold(&mut self, filter: Filter) -> bool {
        let kept = self.take(&filter);
        let any = !kept.is_empty();
        self.held.extend(kept);
        if filter.picks() {
            return any;
        }
        self.holds.push(filter);
        true
    }

    /// Sends held messages on their way, behind all that is in flight, and ends the
    /// hold if it was made in the same words. False when there was no such hold.
    pub(super) fn release(&mut self, filter: &Filter) -> bool {
        let ended = end_rules(&mut self.holds, filter);
        let free = take(&mut self.held, filter);
        let any = !free.is_empty();
        self.flight.extend(free);
        ended || any
    }

    /// Sends copies behind all that is in flight.
    pub(super) fn duplicate(&mut self, filter: &Filter) -> usize {
        let places = filter.places(&self.flight);
        let copies: Vec<Envelope> = places.iter().map(|at| self.flight[*at].clone()).collect();
        self.flight.extend(copies);
        places.len()
    }

    /// Turns the order of the chosen messages round.
    pub(super) fn reorder(&mut self, filter: &Filter) -> usize {
        let places = filter.places(&self.flight);
        let half = places.len() / 2;
        for (front, back) in places.iter().zip(places.iter().rev()).take(half) {
            self.flight.swap(*front, *back);
        }
        places.len()
    }
}

fn take(messages: &mut Vec<Envelope>, filter: &Filter) -> Vec<Envelope> {
    let places = filter.places(messages);
    let mut taken = Vec::with_capacity(places.len());
    for at in places.into_iter().rev() {
        taken.push(messages.remove(at));
    }
    taken.reverse();
    taken
}

fn end_rules(rules: &mut Vec<Filter>, filter: &Filter) -> bool {
    let before = rules.len();
    if filter.is_everything() {
        rules.clear();
    } else {
        rules.retain(|rule| rule != filter);
    }
    rules.len() < before
}

#[cfg(test)]
mod tests {
    use quorate_core::message::Message;

    use super::*;

    fn filter(text: &str) -> Filter {
        Filter::parse(&mut LineWords::of(text).unwrap()).unwrap()
    }

    fn message(from: u64, to: u64) -> Envelope {
        let message = Message::TimeoutNow;
        let (from, to) = (MemberId(from), MemberId(to));
        Envelope { from, to, term: 1, incarnation: 0, joined_at: 0, message }
    }

    #[test]
    fn arrows_name_links() {
        assert!(filter("m1 -> m2").matches(&message(1, 2)));
        assert!(!filter("m1->m2").matches(&message(2, 1)));
        assert!(filter("m1 <-> m2,m3").matches(&message(3, 1)));
        assert!(filter("* -> m2 TimeoutNow").matches(&message(7, 2)));
        assert!(!filter("* -> m2 Vote").matches(&message(7, 2)));
    }

    #[test]
    fn released_messages_come_last() {
        let mut network = StoryNetwork::default();
        network.hold(filter("m1 -> m2"));
        assert_eq!(network.send(message(1, 2)), SendResult::Held);
        assert_eq!(network.send(message(1, 3)), SendResult::InFlight);
        assert!(network.release(&filter("m1 -> m2")));
        assert!(!network.release(&filter("")));
        assert_eq!(network.flight(), [message(1, 3), message(1, 2)]);
        assert_eq!(network.send(message(1, 2)), SendResult::InFlight);
        assert_eq!(network.take(&filter("last 2")).len(), 2);
    }
}
