//! The request pipeline: the same steps for all endpoints, from an admitted request to its answer.
//!
//! A route is `read(scope, handler)` or `write(scope, handler)` with `async fn handler(ctx: &mut RequestContext, input: Input) ->
//! Result<ApiReply, ApiError>`, registered through [`Routes`] with its documentation (how: see [`crate::documents::openapi`]). The order of
//! checks is that of [`auth::admit`]; what a handler sees is a known caller, a transaction confined to its tenant, and a typed input.

pub mod auth;
pub(crate) mod body;
mod capacity;
pub(crate) mod connection;
mod context;
mod deferred_work;
pub(crate) mod doc;
mod endpoints;
pub(crate) mod error;
mod handler;
pub(crate) mod idempotency;
pub mod json;
mod later;
pub(crate) mod observe;
mod observed;
mod one_or_many;
pub(crate) mod page;
mod patch;
pub(crate) mod peer;
mod perform;
mod plain;
mod query;
mod reply;
pub(crate) mod request_log;
mod route;
pub(crate) mod schema;
pub(crate) mod shares;
pub(crate) mod tenant;
mod transaction;
pub(crate) mod types;
pub(crate) mod validate;

pub(crate) use capacity::may_read_call;
pub(crate) use context::{RequestContext, request_notice, write_audit_log};
pub(crate) use doc::Doc;
pub(crate) use endpoints::{
    platform_read, provision, read, read_page, write, write_and_wait, write_by_key, write_large, write_with_files,
    write_with_work,
};
pub(crate) use handler::{NoFields, NoParameters, PreparationContext};
pub use idempotency::IdempotencyKey;
pub(crate) use idempotency::KeyClaim;
pub(crate) use later::Awaited;
pub(crate) use one_or_many::{OneOrMany, one_or_many};
pub use page::time;
pub(crate) use page::{ListPage, resource};
pub(crate) use patch::{GivenTime, Id, Patch, is_in_range, or_default};
pub(crate) use perform::{WouldAnswer, announce};
pub(crate) use reply::{ApiReply, QUIET, status_answer};
pub use route::{KeyAccess, Operation};
pub(crate) use route::{RouteEndpoint, Routes, open};
pub use tenant::is_product_tenant_id;
pub(crate) use tenant::{PRODUCT_TENANT_ID_PATTERN, TenantClaim, check as check_tenant, named_in as tenant_named_in};
pub(crate) use transaction::{begin_read, begin_write};
pub(crate) use validate::Faults;
