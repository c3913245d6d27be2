//! The requests of clients and their results. Requests are numbered through
//! the whole story: `proposal 1`, `read 2`, `change 3`.

use quorate_core::{EntryId, Index, RequestId};

#[derive(Clone, Debug, Default)]
pub(super) struct StoryRequests {
    asked: Vec<(&'static str, RequestState)>,
}

/// What a client knows of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestState {
    Open,
    Logged(EntryId),
    Served(Index),
    Refused(String),
}

impl StoryRequests {
    /// Numbers a new request of this kind.
    pub(super) fn ask(&mut self, kind: &'static str) -> RequestId {
        self.asked.push((kind, RequestState::Open));
        RequestId(self.asked.len() as u64)
    }

    pub(super) fn name(&self, request: RequestId) -> String {
        let kind = self.get(request).map_or("request", |(kind, _)| *kind);
        format!("{kind} {}", request.0)
    }

    pub(super) fn get(&self, request: RequestId) -> Option<&(&'static str, RequestState)> {
        self.asked.get(usize::try_from(request.0).ok()?.checked_sub(1)?)
    }

    pub(super) fn logged(&mut self, request: RequestId, id: EntryId) {
        self.answer(request, RequestState::Logged(id));
    }

    pub(super) fn served(&mut self, request: RequestId, at: Index) {
        self.answer(request, RequestState::Served(at));
    }

    pub(super) fn refused(&mut self, request: RequestId, why: &str) {
        self.answer(request, RequestState::Refused(why.to_owned()));
    }

    fn answer(&mut self, request: RequestId, answer: RequestState) {
        let at = usize::try_from(request.0).ok().and_then(|number| number.checked_sub(1));
        if let Some(slot) = at.and_then(|at| self.asked.get_mut(at)) {
            slot.1 = answer;
        }
    }
}

pub(super) const REQUEST_KINDS: &[&str] = &["proposal", "change", "read"];
