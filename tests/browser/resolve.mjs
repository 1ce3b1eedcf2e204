// Lets modules anywhere in the tree import the packages of package.json, which are installed outside of the tree.
import { createRequire, registerHooks } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const installed = pathToFileURL(join(process.env.HEADRACE_NODE_PACKAGES, "package.json")).href;
createRequire(installed); // fails here, with the path, if the folder is no folder of packages

registerHooks({
  resolve(specifier, context, next) {
    try {
      return next(specifier, context);
    } catch (error) {
      if (error.code !== "ERR_MODULE_NOT_FOUND" || /^[./]/.test(specifier)) throw error;
      return next(specifier, { ...context, parentURL: installed });
    }
  },
});
