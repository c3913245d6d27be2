//! Requests of clients on their way to a member, and the replies.

use quorate::driver::{RequestOutcome, RequestToken};

use super::simulation::{SimEvent, Simulation};
use super::workload::WorkloadRequest;
use crate::checkers::{Checked, Violation};

impl Simulation {
    pub(crate) fn on_answer(
        &mut self,
        place: usize,
        ticket: RequestToken,
        answer: &RequestOutcome,
    ) -> Checked {
        let asked = (place, self.members[place].run, ticket);
        self.note_lease_task(place, ticket, answer);
        if let Some(fits) = self.admin.answered(asked, answer, &mut self.report) {
            return fits.map_err(|why| Violation::new("R2", why));
        }
        let client = self.clients.answered(asked, answer);
        if let Some(client) = client.map_err(|why| Violation::new("R2", why))? {
            self.wake(client);
        }
        Ok(())
    }

    /// A client pauses, then sends its next request.
    pub(crate) fn wake(&mut self, client: usize) {
        if client < self.clients.count() && !self.quiet {
            let at = self.now + self.clients.pause();
            self.schedule(at, SimEvent::Client(client));
        }
    }

    pub(super) fn on_client(&mut self, client: usize) -> Checked {
        self.report.events += 1;
        let up: Vec<usize> =
            (0..self.members.len()).filter(|place| self.is_awake(*place)).collect();
        let to_leader = self.clients.draw(2) == 0;
        let leader = self.leader().filter(|place| to_leader && self.is_awake(*place));
        let drawn = self.clients.draw(up.len() as u64) as usize;
        let Some(place) = leader.or_else(|| up.get(drawn).copied()) else {
            self.wake(client);
            return Ok(());
        };
        let (number, request) = self.clients.next_request(client);
        self.submit(place, number, request)
    }

    pub(crate) fn submit(
        &mut self,
        place: usize,
        number: usize,
        request: WorkloadRequest,
    ) -> Checked {
        let run = self.members[place].run;
        let request = match request {
            WorkloadRequest::Command(command) => {
                WorkloadRequest::Command(self.with_version(place, command))
            }
            query @ WorkloadRequest::Query(_) => query,
        };
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        let ticket = match request {
            WorkloadRequest::Command(command) => process.driver.propose(&command),
            WorkloadRequest::Query(query) => process.driver.read(query),
        };
        let submitted = self.clients.on_submitted((place, run, ticket), number);
        submitted.map_err(|why| Violation::new("R2", why))?;
        self.pump(place)
    }
}
