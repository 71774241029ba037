//! A lock that is held.
//!
//! Invariant: [`Guard::is_held`], [`Guard::token`] and [`Guard::fence`] ask the clock at every call, so that a
//! starved or suspended process is told the truth however late its tasks run.

use std::time::Duration;

use lockstep_wire::FencingToken;
use lockstep_wire::reply::Grant;
use tokio::sync::watch;

use crate::clock;
use crate::core::{CallId, Condition, Loss, Outcome, Time};
use crate::driver::Command;
use crate::error::Error;
use crate::session::{Session, loss_of, odd};

/// A lock that is held. Dropping it releases the lock in the background.
#[derive(Debug)]
pub struct Guard {
    session: Session,
    call: CallId,
    name: String,
    grant: Grant,
    lost: watch::Receiver<Option<Loss>>,
    is_released: bool,
}

impl Guard {
    pub(crate) fn new(
        session: Session,
        call: CallId,
        name: String,
        grant: Grant,
        lost: watch::Receiver<Option<Loss>>,
    ) -> Guard {
        Guard { session, call, name, grant, lost, is_released: false }
    }

    /// The lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The session that holds it.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Whether the lock is held at this moment, as far as anybody can know: the session's deadline lies ahead, and no end of
    /// the hold was heard of.
    pub fn is_held(&self) -> bool {
        self.lost.borrow().is_none() && self.session.is_safe()
    }

    /// The fencing token, while the lock is held.
    pub fn token(&self) -> Option<FencingToken> {
        self.is_held().then_some(self.grant.token)
    }

    /// What to present to a resource with every write, while the lock is held: the token of an exclusive hold, and one number
    /// for all who hold it shared together.
    pub fn fence(&self) -> Option<FencingToken> {
        self.is_held().then_some(self.grant.fence)
    }

    /// Until when it is held if nothing else is heard, on [`clock::now`]'s clock; each acknowledged beat moves it on.
    pub fn safe_until(&self) -> Time {
        if self.lost.borrow().is_some() { Time(0) } else { self.session.safe_until() }
    }

    /// How long that is from now.
    pub fn safe_for(&self) -> Duration {
        clock::until(self.safe_until())
    }

    /// Resolves with the reason once the hold is lost for good: its cell has said so, or could not be asked until the
    /// grace period after the deadline was over. See [`Guard::at_risk`] for what comes first.
    pub async fn lost(&self) -> Loss {
        let mut lost = self.lost.clone();
        match lost.wait_for(Option::is_some).await {
            Ok(reason) => reason.unwrap_or(Loss::Unknown),
            // The driver is gone, and with it whatever kept the session alive.
            Err(_) => loss_of(self.session.condition()).unwrap_or(Loss::Unknown),
        }
    }

    /// Resolves as soon as the lock may not be relied on any more: its deadline has passed, or it is lost. From jeopardy it may
    /// come back ([`Guard::is_held`] is true again), without anybody else having held it.
    pub async fn at_risk(&self) {
        let mut conditions = self.session.conditions();
        tokio::select! {
            _ = self.lost() => {}
            _ = conditions.wait_for(|condition| *condition != Condition::Safe) => {}
        }
    }

    /// Gives the lock back and waits until that is certain.
    pub async fn release(mut self) -> Result<(), Error> {
        self.is_released = true;
        let what = format!("releasing {}", self.name);
        let lost = *self.lost.borrow();
        if lost.is_some() {
            return Err(match self.session.condition() {
                Condition::Ended(reason) => Error::SessionEnded { what, reason },
                Condition::Opening | Condition::Safe | Condition::Jeopardy => {
                    Error::Stale { name: self.name.clone(), token: self.grant.token }
                }
            });
        }
        let call = self.call;
        let asked = self.session.handle().ask(&what, |answer| Command::Release {
            call,
            answer: Some(answer),
            what: what.clone(),
        });
        let next = "it is tried for as long as the session lives; the lock is free by its end at the latest";
        match asked.await.map_err(|error| error.with_next(next))? {
            Outcome::Released => Ok(()),
            Outcome::StaleToken => Err(Error::Stale { name: self.name.clone(), token: self.grant.token }),
            other => Err(odd(&what, &other)),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_released {
            let what = format!("releasing {}", self.name);
            self.session.handle().tell(Command::Release { call: self.call, answer: None, what });
        }
    }
}
