//! A deterministic simulator over the real core, log, wire and client core.
