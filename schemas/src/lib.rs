//! The contracts: ids, states, addresses, subjects, one type per bus message, and tokens.
//!
//! Nothing here talks to a server. Every other crate depends on this one; it depends on none of ours.

pub mod about;
pub mod action;
pub mod address;
pub mod answers;
pub mod catalog;
pub mod control;
pub mod delay;
pub mod events;
pub mod fault;
pub mod freemail;
pub mod ids;
pub mod key;
pub mod messages;
mod named_enum;
pub mod quiet;
pub mod receiver;
pub mod rejected;
pub mod rendered;
pub mod scope;
pub mod states;
pub mod subjects;
pub mod text;
pub mod token;
pub mod webhook;

pub use about::{About, Work};
pub use address::{Address, AddressError};
pub use control::{Control, ControlAnswer, LedgerMark};
pub use events::{Event, EventData, EventType};
pub use ids::{LaunchId, SendId, month_of, new_batch_id, new_id, parse_id};
pub use messages::{
    Cleared, ClearedRecipient, FactsAnnounced, InboundAnnounced, RequestAnnounced, Resolved, Signal, SignalKind,
};
pub use rejected::RequestRejected;
pub use rendered::{LinkToken, Piece, PlaceholderValues, Rendered, RenderedRecipient, Skeleton, SkeletonId, TokenIds};
pub use states::{
    AttributionModel, BounceClass, CampaignStatus, Classification, DelayUnit, DeliveryStatus, DirectKind, DomainStatus,
    EnrollmentStatus, Environment, ExitReason, Lane, MarketingStatus, MessageKind, MessagePurpose, OnMiss, OutcomeType,
    PauseReason, ProviderKind, RequestKind, SendState, SequenceStatus, SkipReason, StepType, SubscriptionStatus,
    WinnerMetric, WinnerReason,
};
