//! `/v1/requests`: the log of a tenant's calls; and the commands among them that were accepted.

mod accepted;
mod log;
pub(crate) mod store;

use crate::pipeline::Routes;

/// The routes.
pub(crate) fn routes() -> Routes {
    let (log, log_doc) = log::endpoint();
    let (accepted, accepted_doc) = accepted::endpoint();
    Routes::new().get("/v1/requests", log, log_doc).get("/v1/requests/accepted", accepted, accepted_doc)
}
