//! Tokens and fences as clients see them (contract, point 1: any later grant of the same name has a greater token, for ever;
//! ARCHITECTURE section 2, "Fence").
//!
//! Invariants checked, in real time: whoever asks for a name after somebody was told of a token or a floor gets a greater
//! one; no token of an exclusive hold is ever given to two; all sharers of a phase
//! have one fence, which lies above every exclusive token before it and, with all its tokens, below every one after it;
//! and a floor lies at or above every token that was told before it was asked for. Deliberately absent: the log.

use std::collections::BTreeMap;

use lockstep_wire::request::Mode;
use lockstep_wire::{CellId, FencingToken, Owner, SessionId};

use super::{Verdict, violated};

const RULE: &str = "every later grant has a greater token (contract 1)";
const FENCE: &str = "one fence a phase, above those before it (contract 1)";

/// The lock, by its cell and name.
pub type Resource = (CellId, String);

/// Who was told: a session, and who within it.
pub type Grantee = (SessionId, Owner);

/// A grant as its client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Of what.
    pub resource: Resource,
    /// Who was told.
    pub grantee: Grantee,
    /// How it holds.
    pub mode: Mode,
    /// The token.
    pub token: FencingToken,
    /// The fence.
    pub fence: FencingToken,
    /// The greatest number of the name that anybody had been told of when it was first asked for; 0 for a reentrant
    /// acquire, which may be granted the hold that its owner has.
    pub floor: FencingToken,
}

/// All grants that were told with one fence.
#[derive(Clone, Copy, Debug)]
struct Phase {
    mode: Mode,
    greatest: FencingToken,
}

#[derive(Debug, Default)]
struct Name {
    greatest: FencingToken,
    owners: BTreeMap<FencingToken, (Grantee, Mode)>,
    phases: BTreeMap<FencingToken, Phase>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Tokens {
    names: BTreeMap<Resource, Name>,
}

impl Tokens {
    /// The greatest token or floor of a name that anybody was told of.
    pub fn floor(&self, resource: &Resource) -> FencingToken {
        self.names.get(resource).map_or(FencingToken(0), |name| name.greatest)
    }

    /// A client was told of a grant.
    ///
    /// # Errors
    /// The token does not grow, or is another holder's; or the fence does not go with the others.
    pub fn on_granted(&mut self, told: &Told) -> Verdict {
        let name = self.names.entry(told.resource.clone()).or_default();
        let (first, mode) = *name.owners.entry(told.token).or_insert((told.grantee, told.mode));
        if told.token <= told.floor {
            return violated(
                RULE,
                format!(
                    "{:?} asked for {:?} after {} was told, and got {}",
                    told.grantee, told.resource, told.floor, told.token
                ),
            );
        }
        if first != told.grantee && (mode == Mode::Exclusive || told.mode == Mode::Exclusive) {
            return violated(
                RULE,
                format!(
                    "{first:?} and {:?} were both given token {} of {:?}",
                    told.grantee, told.token, told.resource
                ),
            );
        }
        name.greatest = name.greatest.max(told.token);
        name.check_fence(told)
    }

    /// A client was shown a floor, which it had asked for when [`Tokens::floor`] was `before`.
    ///
    /// # Errors
    /// Greater tokens had been told of before.
    pub fn on_floor(&mut self, resource: &Resource, floor: FencingToken, before: FencingToken) -> Verdict {
        if floor < before {
            return violated(
                RULE,
                format!("a floor of {floor} is shown for {resource:?}, and {before} had been told of before"),
            );
        }
        let name = self.names.entry(resource.clone()).or_default();
        name.greatest = name.greatest.max(floor);
        Ok(())
    }
}

impl Name {
    fn check_fence(&mut self, told: &Told) -> Verdict {
        let fresh = Phase { mode: told.mode, greatest: told.token };
        let phase = self.phases.entry(told.fence).or_insert(fresh);
        phase.greatest = phase.greatest.max(told.token);
        let greatest = phase.greatest;
        let is_own = match told.mode {
            Mode::Exclusive => told.fence == told.token,
            Mode::Shared => told.fence <= told.token,
        };
        let is_apart = phase.mode == told.mode;
        let before = self.phases.range(..told.fence).next_back();
        let after = self.phases.range(FencingToken(told.fence.0 + 1)..).next();
        let is_above = before.is_none_or(|(_, before)| before.greatest < told.fence);
        let is_below = after.is_none_or(|(fence, _)| greatest < *fence);
        if is_own && is_apart && is_above && is_below {
            return Ok(());
        }
        violated(
            FENCE,
            format!(
                "{:?} has {:?} {:?} with token {} and fence {}; the phases beside it are {before:?} and {after:?}",
                told.grantee, told.resource, told.mode, told.token, told.fence
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource() -> Resource {
        (CellId(0), "n".to_owned())
    }

    fn told(session: u64, token: u64, floor: u64) -> Told {
        Told {
            resource: resource(),
            grantee: (SessionId(session), Owner(1)),
            mode: Mode::Exclusive,
            token: FencingToken(token),
            fence: FencingToken(token),
            floor: FencingToken(floor),
        }
    }

    fn shared(session: u64, token: u64, fence: u64) -> Told {
        Told { mode: Mode::Shared, fence: FencingToken(fence), ..told(session, token, 0) }
    }

    #[test]
    fn a_token_that_does_not_grow_in_real_time_is_seen() {
        let mut tokens = Tokens::default();
        assert!(tokens.on_granted(&told(1, 5, 0)).is_ok());
        assert!(tokens.on_granted(&told(2, 4, 0)).is_ok(), "asked for before, told later");
        assert!(tokens.on_granted(&told(3, 3, 5)).is_err());
        assert!(tokens.on_granted(&told(1, 5, 0)).is_ok(), "granted its own hold again");
    }

    #[test]
    fn one_token_for_two_is_seen() {
        let mut tokens = Tokens::default();
        assert!(tokens.on_granted(&told(1, 5, 0)).is_ok());
        assert!(tokens.on_granted(&told(2, 5, 0)).is_err());
    }

    #[test]
    fn a_floor_lies_above_what_was_told_and_below_what_is_granted_later() {
        let mut tokens = Tokens::default();
        assert!(tokens.on_granted(&told(1, 5, 0)).is_ok());
        assert!(tokens.on_floor(&resource(), FencingToken(4), FencingToken(5)).is_err());
        assert!(tokens.on_floor(&resource(), FencingToken(9), FencingToken(5)).is_ok());
        let floor = tokens.floor(&resource());
        assert!(tokens.on_granted(&told(2, 8, floor.0)).is_err());
    }

    #[test]
    fn a_floor_that_was_shown_before_any_grant_binds_the_first_one() {
        let mut tokens = Tokens::default();
        assert!(tokens.on_floor(&resource(), FencingToken(9), FencingToken(0)).is_ok());
        assert_eq!(tokens.floor(&resource()), FencingToken(9));
        assert!(tokens.on_granted(&told(1, 9, 9)).is_err());
        assert!(tokens.on_granted(&told(1, 10, 9)).is_ok());
    }

    #[test]
    fn an_exclusive_token_inside_a_shared_phase_is_seen() {
        let mut tokens = Tokens::default();
        assert!(tokens.on_granted(&shared(1, 5, 5)).is_ok());
        assert!(tokens.on_granted(&shared(2, 7, 5)).is_ok());
        assert!(tokens.on_granted(&told(3, 6, 0)).is_err());
    }

    #[test]
    fn two_fences_in_one_phase_are_seen() {
        let mut tokens = Tokens::default();
        assert!(tokens.on_granted(&shared(1, 5, 5)).is_ok());
        assert!(tokens.on_granted(&shared(2, 8, 7)).is_ok());
        assert!(tokens.on_granted(&shared(3, 9, 5)).is_err());
    }

    #[test]
    fn an_exclusive_holder_with_another_fence_than_its_token_is_seen() {
        let mut tokens = Tokens::default();
        assert!(tokens.on_granted(&Told { fence: FencingToken(4), ..told(1, 5, 0) }).is_err());
    }
}
