//! Tokens as clients see them (contract, point 1: any later grant of the same name has a greater token, for ever).
//!
//! Invariant checked, in real time: whoever asks for a name after somebody was told of a token gets a greater one;
//! and no token of an exclusive hold is ever given to two. Deliberately absent: the log.

use std::collections::BTreeMap;

use lockstep_wire::request::Mode;
use lockstep_wire::{CellId, FencingToken};

use super::exclusion::Holder;
use super::{Verdict, violated};

const RULE: &str = "every later grant has a greater token (contract 1)";

/// A grant as its client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The lock, by its cell and name.
    pub resource: (CellId, String),
    /// Who was told.
    pub holder: Holder,
    /// How it holds.
    pub mode: Mode,
    /// The token.
    pub token: FencingToken,
    /// The greatest token of the name that anybody had been told of when it was asked for.
    pub floor: FencingToken,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Tokens {
    greatest: BTreeMap<(CellId, String), FencingToken>,
    owners: BTreeMap<((CellId, String), FencingToken), (Holder, Mode)>,
}

impl Tokens {
    /// The greatest token of a name that anybody was told of.
    pub fn floor(&self, resource: &(CellId, String)) -> FencingToken {
        self.greatest.get(resource).copied().unwrap_or_default()
    }

    /// A client was told of a grant.
    ///
    /// # Errors
    /// The token does not grow, or is another holder's.
    pub fn on_granted(&mut self, told: &Told) -> Verdict {
        if told.token <= told.floor {
            return violated(
                RULE,
                format!(
                    "{:?} asked for {:?} after token {} was told, and got {}",
                    told.holder, told.resource, told.floor, told.token
                ),
            );
        }
        let key = (told.resource.clone(), told.token);
        let (first, mode) = *self.owners.entry(key).or_insert((told.holder, told.mode));
        if first != told.holder && (mode == Mode::Exclusive || told.mode == Mode::Exclusive) {
            return violated(
                RULE,
                format!(
                    "{first:?} and {:?} were both given token {} of {:?}",
                    told.holder, told.token, told.resource
                ),
            );
        }
        let greatest = self.greatest.entry(told.resource.clone()).or_default();
        *greatest = (*greatest).max(told.token);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(client: usize, token: u64, floor: u64) -> Told {
        Told {
            resource: (CellId(0), "n".to_owned()),
            holder: (client, 1, 1),
            mode: Mode::Exclusive,
            token: FencingToken(token),
            floor: FencingToken(floor),
        }
    }

    #[test]
    fn a_token_that_does_not_grow_in_real_time_is_seen() {
        let mut tokens = Tokens::default();
        assert!(tokens.on_granted(&told(1, 5, 0)).is_ok());
        assert!(tokens.on_granted(&told(2, 4, 0)).is_ok(), "asked for before, told later");
        assert!(tokens.on_granted(&told(2, 5, 5)).is_err());
    }

    #[test]
    fn one_token_for_two_is_seen() {
        let mut tokens = Tokens::default();
        assert!(tokens.on_granted(&told(1, 5, 0)).is_ok());
        assert!(tokens.on_granted(&told(2, 5, 0)).is_err());
    }
}
