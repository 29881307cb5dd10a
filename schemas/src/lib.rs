//! The contracts: ids, states, addresses, subjects, one type per bus message, tokens and the compliance gate.
//!
//! Nothing here talks to a server. Every other crate depends on this one; it depends on none of ours.

pub mod address;
pub mod freemail;
pub mod gate;
pub mod ids;
pub mod key;
pub mod messages;
pub mod rendered;
pub mod scope;
pub mod states;
pub mod subjects;
pub mod token;

pub use address::{Address, AddressError};
pub use ids::{LaunchId, SendId, month_of, new_batch_id, new_id, parse_id};
pub use messages::{Cleared, ClearedRecipient, RequestAnnounced, Resolved, Signal, SignalKind};
pub use rendered::{Piece, Rendered, RenderedRecipient, Skeleton, SkeletonId};
pub use states::{
    CampaignStatus, Classification, DomainStatus, Environment, Lane, MessageKind, MessagePurpose, OnMiss, PauseReason,
    RequestKind, SendState, SkipReason, WinnerMetric, WinnerReason,
};
