//! The contracts, made from the routes: OpenAPI for HTTP, AsyncAPI for the bus.

pub mod asyncapi;
pub mod openapi;
pub(crate) mod served;

use schemas::catalog;

use self::asyncapi::Asyncapi;
use crate::pipeline::Operation;

/// The contracts of some operations.
#[derive(Debug)]
pub struct Contracts {
    /// The OpenAPI document as it is written and served: pretty, with a line break at the end.
    pub openapi: String,
    /// The contract of the bus.
    pub asyncapi: Asyncapi,
}

impl Contracts {
    /// Makes them.
    #[must_use]
    pub fn new(operations: &[Operation]) -> Self {
        let http = openapi::document(operations);
        Self { asyncapi: Asyncapi::new(operations, &http), openapi: catalog::printed(&http) }
    }
}
